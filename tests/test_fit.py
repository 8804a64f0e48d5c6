"""Planted optima and drifts; verdicts that must come out."""

import math

import numpy as np
import pytest

from depthmup import fit

LRS = 2.0 ** np.arange(-8, 1.01, 0.5)
CAP = math.log(10)


def curve(optimum, seeds=6, noise=0.0, cliff=math.inf, rng=None):
    """A parabola of log loss in log2 LR with curvature .2, diverging beyond `cliff` octaves above the optimum."""
    x = np.log2(LRS)[:, None] - optimum
    log_loss = 0.2 * x**2 - 2 + noise * (rng or np.random.default_rng(0)).normal(size=(len(LRS), seeds))
    return np.where(x > cliff, np.nan, np.exp(log_loss))


def table(optima, axis="depth", **options):
    rng = np.random.default_rng(1)
    rows = []
    for size, optimum in optima.items():
        losses = curve(optimum, rng=rng, **options)
        for i, lr in enumerate(LRS):
            for seed in range(losses.shape[1]):
                loss = losses[i, seed]
                rows.append({axis: size, "learning_rate": lr, "seed": seed, "loss": loss, "diverged": math.isnan(loss)})
    return rows


@pytest.mark.parametrize("planted", [-6.9, -4.0, -3.13, -0.6])
def test_optimum_of_a_parabola(planted):
    found = fit.optimum(LRS, curve(planted), CAP)
    assert math.log2(found.learning_rate) == pytest.approx(planted, abs=1e-9)
    assert found.reason == ""
    shuffled = np.random.default_rng(0).permutation(len(LRS))
    assert fit.optimum(LRS[shuffled], curve(planted)[shuffled], CAP) == found


def test_optimum_next_to_a_cliff_is_within_the_five_points():
    found = fit.optimum(LRS, curve(-3.0, cliff=0.4), CAP)
    assert -4.0 <= math.log2(found.learning_rate) <= -3.0


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        (curve(-9.0), "at the lower edge of the grid"),
        (curve(2.0), "at the upper edge of the grid"),
        (np.full((len(LRS), 3), np.nan), "never trains"),
        (np.full((len(LRS), 3), 7.0), "never trains"),
    ],
)
def test_no_optimum(losses, reason):
    found = fit.optimum(LRS, losses, CAP)
    assert (found.learning_rate, found.reason) == (None, reason)


def test_stderr_is_the_scatter_of_optima():
    """Of 200 experiments with 6 seeds, against the mean of what each says of itself."""
    rng = np.random.default_rng(2)
    results = [fit.optimum(LRS, curve(-4.1, noise=0.05, rng=rng), CAP) for _ in range(200)]
    scatter = np.std([math.log2(r.learning_rate) for r in results])
    assert np.sqrt(np.mean([r.stderr**2 for r in results])) == pytest.approx(scatter, rel=0.2)
    assert math.isnan(fit.optimum(LRS, curve(-4.1, seeds=1), CAP).stderr)


def test_capped():
    np.testing.assert_allclose(fit.capped(np.array([0.5, 3.0, np.nan, np.inf]), 2.0), [0.5, 2, 2, 2])
    np.testing.assert_allclose(fit.capped(np.array([0.5, 3.0, np.nan, np.inf]), None), [0.5, 3, 3, 3])


@pytest.mark.parametrize(
    ("optima", "options", "verdict", "drift"),
    [
        ({2: -4.0, 4: -4.0, 8: -4.0, 16: -4.0}, {"noise": 0.02}, "transfers", 0.0),
        ({2: -4.0, 4: -4.1, 8: -4.2, 16: -4.3}, {"noise": 0.02}, "transfers", -0.1),
        ({2: -3.0, 4: -4.0, 8: -5.0, 16: -6.0}, {"noise": 0.02}, "does not transfer", -1.0),
        ({2: -6.0, 4: -5.5, 8: -5.0, 16: -4.5}, {"noise": 0.02}, "does not transfer", 0.5),
        ({2: -4.0, 4: -4.25, 8: -4.5, 16: -4.75}, {"noise": 0.1}, "inconclusive", -0.25),
        ({2: -4.0, 4: -4.0, 8: -9.0}, {"noise": 0.02}, "does not transfer", 0.0),
        ({2: -3.0, 4: -3.5}, {"noise": 0.02, "cliff": 0.3}, "does not transfer", -0.5),
    ],
)
def test_verdicts(optima, options, verdict, drift):
    found = fit.transfer(table(optima, **options), cap=CAP)
    assert found.verdict == verdict, found.reason
    assert found.drift.octaves_per_doubling == pytest.approx(drift, abs=0.12)
    assert found.drift.low <= found.drift.octaves_per_doubling <= found.drift.high
    assert found.values == list(optima)


def test_interval_covers_the_planted_drift():
    """95% intervals of 200 planted drifts hold it in 93 of 100 or more, and are not twice as wide as need be."""
    drifts = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        rows = []
        for size, optimum in {2: -4.0, 4: -4.15, 8: -4.3, 16: -4.45}.items():
            losses = curve(optimum, noise=0.05, rng=rng)
            rows += [
                {"depth": size, "learning_rate": lr, "seed": s, "loss": losses[i, s]}
                for i, lr in enumerate(LRS)
                for s in range(6)
            ]
        drifts.append(fit.transfer(rows, cap=CAP).drift)
    assert np.mean([d.low <= -0.15 <= d.high for d in drifts]) >= 0.93
    needed = 2 * 1.96 * np.std([d.octaves_per_doubling for d in drifts])
    assert np.median([d.high - d.low for d in drifts]) < 2 * needed


def test_regret():
    """Loss with the smallest size's best LR, minus the best at this size; None where it diverges."""
    found = fit.transfer(table({2: -4.0, 4: -5.0, 8: -5.5}, cliff=1.2), cap=CAP)
    best = math.exp(-2)
    assert found.regret[0] == pytest.approx(0, abs=1e-12)
    assert found.regret[1] == pytest.approx(best * (math.exp(0.2) - 1), rel=1e-9)
    assert found.regret[2] is None
    assert (found.verdict, "best LR of depth 2 diverges at depth 8" in found.reason) == ("does not transfer", True)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "the table is empty"),
        (table({2: -4.0}), "at least two values"),
        (table({2: -4.0, 4: -4.0})[:-1], "it needs all seeds"),
        (table({2: -4.0, 4: -4.0}) + table({2: -4.0}), "two rows for depth=2"),
    ],
)
def test_errors(rows, says):
    with pytest.raises(ValueError, match=says):
        fit.transfer(rows)


def test_optimum_errors():
    with pytest.raises(ValueError, match="at least 5 learning rates, got 4"):
        fit.optimum(LRS[:4], np.ones(4))
    for shape in ((6, len(LRS)), (2 * len(LRS),), (len(LRS), 2, 2), (len(LRS), 0)):  # (seeds, points) first
        with pytest.raises(ValueError, match=r"losses must be \(points,\) or \(points, seeds\)"):
            fit.optimum(LRS, np.ones(shape))
    with pytest.raises(ValueError, match="losses must not be negative"):
        fit.optimum(LRS, -np.ones(len(LRS)))
    with pytest.raises(ValueError, match="must be positive"):
        fit.optimum([-1, 1, 2, 3, 4], np.ones(5))

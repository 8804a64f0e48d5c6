"""Planted optima and drifts; verdicts that must come out."""

import math

import numpy as np
import pytest
from scipy import stats

from depthmup import fit
from experiments import planted_curves

LRS = 2.0 ** np.arange(-8, 1.01, 0.5)
CAP = math.log(10)
LEVELS = 0.1 * np.linspace(-1, 1, 6)  # of the seeds
BEST = math.exp(-2) * np.exp(LEVELS).mean()  # the smallest seed-mean loss


def curve(optimum, seeds=6, noise=0.0, cliff=math.inf, rng=None):
    """A parabola of log loss in log2 LR with curvature .2, diverging beyond `cliff` octaves above the optimum; seeds
    differ in their level."""
    x = np.log2(LRS)[:, None] - optimum
    noise = noise * (rng or np.random.default_rng(0)).normal(size=(len(LRS), seeds))
    log_loss = 0.2 * x**2 - 2 + noise + (LEVELS if seeds == 6 else np.linspace(0, 0.1, seeds))
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


@pytest.mark.parametrize(
    ("cliff", "star", "at_edge"), [(0.4, -3.0, True), (0.9, -3.0, False), (1.2, -3.0, False), (-0.3, -3.5, True)]
)
def test_optimum_below_a_cliff(cliff, star, at_edge):
    """It stays where all seeds train, and the interval reaches to the edge if it is within a grid step."""
    found = fit.optimum(LRS, curve(-3.0, cliff=cliff), CAP)
    assert math.log2(found.learning_rate) == pytest.approx(star, abs=1e-9)
    assert found.at_edge == at_edge
    last = math.floor(2 * (cliff - 3.0)) / 2
    assert math.log2(found.edge.learning_rate) == pytest.approx(last + 0.25)
    assert math.log2(found.edge.all_train) == last
    assert (math.log2(found.edge.low), math.log2(found.edge.high)) == pytest.approx((last, last + 0.5))
    assert found.resolution == (0.25 if at_edge else 0)
    assert (found.high >= found.edge.high) == at_edge


def test_the_optimum_lies_on_its_curve():
    """The loss there, interpolated between grid points, is at most the smallest plus its standard error."""
    rng = np.random.default_rng(5)
    for _ in range(100):
        losses = curve(-4.1 + rng.uniform(-0.25, 0.25), noise=0.2, cliff=rng.uniform(0, 2), rng=rng)
        found = fit.optimum(LRS, losses, CAP)
        log = np.log(losses[np.isfinite(losses).all(axis=1)])
        best = log[log.mean(axis=1).argmin()]
        assert math.log(found.loss) <= best.mean() + best.std(ddof=1) / math.sqrt(6) + 1e-9
        assert math.log2(found.learning_rate) <= math.log2(found.edge.all_train) + 1e-9


def test_the_edge_is_the_median_of_the_seeds():
    """One seed's cliff is far below, five lie together; a loss of chance above the optimum is no better than NaN."""
    losses = curve(-4.1, cliff=2.0)
    for value in (np.nan, CAP, np.inf):
        low = np.where((np.log2(LRS) > -3.3)[:, None] & (np.arange(6) == 3), value, losses)
        found = fit.optimum(LRS, low, CAP)
        assert math.log2(found.edge.learning_rate) == pytest.approx(-2.25)
        assert math.log2(found.edge.all_train) == -3.5
        assert found.edge.stderr == pytest.approx(1.0 / 6)  # edges at -3.25 and five times -2.25
    assert fit.optimum(LRS, curve(-4.1), 1e9).edge.reason == "no seed diverges on the grid"
    most = np.where((np.log2(LRS) > 0.7)[:, None] & (np.arange(6) < 2), np.nan, curve(-4.1))
    edge = fit.optimum(LRS, most, 1e9).edge
    assert (edge.learning_rate, edge.reason) == (None, "half of the seeds train at the largest learning rate")
    assert edge.all_train == 2.0**0.5


def test_a_curve_that_says_too_little():
    x = np.log2(LRS)[:, None]
    for losses, reason in (
        (np.where(x == -4, 0.1, np.nan), "at the lower edge of the grid"),
        (np.where(x < -7, -x / 20, np.nan), "only 2 learning rates train: refine the grid, or widen it downwards"),
        (np.where(np.arange(19)[:, None] % 2 == np.arange(2), np.nan, 0.1), "no learning rate trains all seeds"),
    ):
        found = fit.optimum(LRS, np.broadcast_to(losses, (19, 2)), CAP)
        assert found.learning_rate is None
        assert found.reason.startswith(reason)
    diverged = np.zeros((19, 6), bool)
    with pytest.raises(ValueError, match=r"the loss at learning rate 2 is nan, but its training has not diverged"):
        fit.optimum(LRS, np.where(x == 1, np.nan, curve(-4.1)), CAP, diverged)
    with pytest.raises(ValueError, match="diverged must have the shape of losses"):
        fit.optimum(LRS, curve(-4.1), CAP, diverged[:, :3])
    rows = table({2: -4.0, 4: -4.0})
    rows[7]["loss"] = math.nan
    with pytest.raises(
        ValueError, match=r"loss is nan at depth=2, learning_rate=\S+, seed=1, though it has not diverged"
    ):
        fit.transfer(rows)


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


@pytest.mark.parametrize("seeds", [3, 6])
@pytest.mark.parametrize("kind", planted_curves.SMOOTH, ids=lambda kind: kind.name)
def test_planted_optima_are_found(kind, seeds):
    """Of 200 curves on grids of half an octave (2,000 in experiments/planted_curves.py)."""
    found = planted_curves.measured(kind, 0.5, seeds, 200)
    assert abs(found["bias"]) <= 0.12
    assert 0.91 <= found["coverage"] <= 0.995
    assert found["on curve"] == 1
    assert found["none"] == 0


@pytest.mark.parametrize("kind", planted_curves.CLIFFS, ids=lambda kind: f"{kind.name} {kind.cliff:g}")
def test_planted_optima_below_cliffs_are_found(kind):
    found = planted_curves.measured(kind, 0.5, 6, 100)
    assert abs(found["bias"]) <= (0.12 if kind.cliff > 0.5 else 0.32)
    assert found["coverage"] >= 0.88
    assert found["edge"] >= 0.92
    assert found["on curve"] == 1


def test_a_flat_bottom_is_judged_by_regret():
    found = planted_curves.measured(planted_curves.FLAT, 0.5, 6, 100)
    assert found["regret"] < 0.01
    assert found["width"] > 1.5


def test_no_interval_with_one_seed():
    found = fit.optimum(LRS, curve(-4.1, seeds=1), CAP)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert math.isnan(found.edge.low)


def test_errors_of_exactly_zero():
    """Of 200 experiments with errors of 1000 examples, many at the optimum 0: a 0 does not outweigh its neighbours."""
    rng = np.random.default_rng(4)
    error = np.minimum(0.002 * np.exp(0.3 * (np.log2(LRS) + 4.1) ** 2), 0.9)
    counts = rng.binomial(1000, error[:, None], size=(200, len(LRS), 6))
    assert (counts == 0).any(axis=(1, 2)).mean() > 0.9
    octaves = [math.log2(fit.optimum(LRS, one / 1000).learning_rate) for one in counts]
    assert np.mean(octaves) == pytest.approx(-4.1, abs=0.1)
    assert np.std(octaves) < 0.45


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
        ({2: -4.0, 4: -4.25, 8: -4.5, 16: -4.75}, {"noise": 0.1}, "undecided", -0.25),
        ({2: -4.0, 4: -4.0, 8: -9.0}, {"noise": 0.02}, "does not transfer", 0.0),
        ({2: -3.0, 4: -3.5}, {"noise": 0.02, "cliff": 0.3}, "undecided", -0.5),  # the same grid point or the next
        ({2: -3.0, 4: -4.5, 8: -6.0}, {"noise": 0.02, "cliff": 0.3}, "does not transfer", -1.5),
    ],
)
def test_verdicts(optima, options, verdict, drift):
    found = fit.transfer(table(optima, **options), cap=CAP)
    assert found.verdict == verdict, found.reason
    assert found.drift.octaves_per_doubling == pytest.approx(drift, abs=0.12)
    assert found.drift.low <= found.drift.octaves_per_doubling <= found.drift.high
    assert found.values == list(optima)


def test_scatter_about_the_line_widens_the_interval():
    """Seeds that agree on optima which lie on no line."""
    on, off = (
        fit.transfer(table(optima, noise=0.001), cap=CAP).drift
        for optima in ({2: -4.0, 4: -4.1, 8: -4.2, 16: -4.3}, {2: -4.0, 4: -4.4, 8: -3.6, 16: -4.0})
    )
    assert on.high - on.low < 0.05
    assert off.high - off.low > 0.3


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


def test_one_seed_says_where_the_interval_comes_from():
    line = table({2: -4.0, 4: -4.05, 8: -4.0, 16: -4.05}, seeds=1)
    found = fit.transfer(line, cap=CAP)
    assert found.verdict == "transfers"
    assert "(one seed: it comes from the scatter about the line alone)" in found.reason
    found = fit.transfer([row for row in line if row["depth"] < 8], cap=CAP)
    assert (found.verdict, found.drift.low) == ("undecided", -math.inf)
    assert found.reason.startswith("one seed: two sizes give no interval of the drift")
    assert "-0.05" in found.reason
    assert "one seed" not in fit.transfer(table({2: -4.0, 4: -4.0}, noise=0.02), cap=CAP).reason


@pytest.mark.parametrize(("optima", "verdict"), [({2: -4.0, 8: -4.1}, "transfers"), ({2: -3.0, 8: -6.0}, "not")])
def test_another_hyperparameter(optima, verdict):
    """The column that is followed, whatever else the rows say."""
    options = {"noise": 0.02, "cliff": 2.2}
    expected = fit.transfer(table(optima, **options), cap=CAP)
    rows = [{**row, "gamma0": row["learning_rate"], "learning_rate": 0.1} for row in table(optima, **options)]
    found = fit.transfer(rows, cap=CAP, hyperparameter="gamma0")
    assert verdict in found.verdict
    assert (found.optimal_lr, found.drift, found.regret) == (expected.optimal_lr, expected.drift, expected.regret)
    assert found.by_regret.reason == expected.by_regret.reason.replace("best LR", "best gamma0")
    assert found.by_regret.reason.startswith("the best gamma0 of depth 2")
    with pytest.raises(ValueError, match=r"two rows for depth=2, learning_rate=0\.1"):
        fit.transfer(rows)
    with pytest.raises(ValueError, match="gamma0 must be positive, got 0"):
        fit.transfer([*rows, {**rows[0], "gamma0": 0}], hyperparameter="gamma0")
    with pytest.raises(ValueError, match=r"no row for depth=8, gamma0=2\.0, seed=5"):
        fit.transfer(rows[:-1], hyperparameter="gamma0")


def with_accuracy(rows, key="validation_accuracy"):
    """1 - accuracy is a tenth of the loss; a run that diverged has none."""
    return [{**row, key: None if row["diverged"] else 1 - min(row["loss"] / 10, 1)} for row in rows]


def test_accuracy_as_the_measure():
    rows = with_accuracy(table({2: -4.0, 4: -4.5, 8: -5.0}, noise=0.02, cliff=2.3), "test_accuracy")
    found = fit.transfer([{**row, "loss": 1.0} for row in rows], cap=CAP / 10, measure="test_accuracy")
    expected = fit.transfer(rows, cap=CAP)
    np.testing.assert_allclose(found.optimal_lr, expected.optimal_lr, rtol=1e-9)
    np.testing.assert_allclose(found.regret, np.array(expected.regret) / 10, rtol=1e-9)
    assert found.verdict == expected.verdict == "does not transfer"
    with pytest.raises(ValueError, match="test_accuracy must lie between 0 and 1"):
        fit.transfer([{**row, "test_accuracy": 93.0} for row in rows], measure="test_accuracy")


def test_what_diverged_counts_as_divergence():
    """Whatever loss such a row has: it neither is the optimum nor hides the cliff."""
    rows = table({2: -4.0, 4: -4.0}, noise=0.02)
    fallen = [{**row, "diverged": row["learning_rate"] > 2.0**-2.6} for row in rows]
    fallen = [{**row, "loss": 0.01} if row["diverged"] and row["seed"] else row for row in fallen]
    found = fit.transfer(fallen, cap=CAP)
    np.testing.assert_allclose(np.log2(found.optimal_lr), -4, atol=0.2)
    assert found.regret == pytest.approx([0, 0], abs=0.01)
    assert [math.log2(o.edge.learning_rate) for o in found.optima] == [pytest.approx(-2.75)] * 2
    for flags, rates in zip(found.diverged, found.learning_rates, strict=True):
        np.testing.assert_array_equal(flags, np.repeat(rates[:, None] > 2.0**-2.6, 6, axis=1))


def test_regret_in_accuracy():
    """Best accuracy on the size's grid minus that with the smallest size's best LR; None where it diverges."""
    rows = with_accuracy(table({2: -4.0, 4: -5.0, 8: -5.5}, cliff=1.2))
    found = fit.transfer(rows, cap=CAP)
    expected = BEST * (math.exp(0.2) - 1) / 10
    assert found.regret_accuracy == [pytest.approx(0, abs=1e-12), pytest.approx(expected), None]
    assert found.cap == CAP
    for rows in (
        table({2: -4.0, 4: -5.0}),
        with_accuracy(table({2: -4.0, 4: -5.0})),
        with_accuracy(table({2: 3, 4: -5.0})),
    ):
        rows[-1].pop("validation_accuracy", None)
        assert fit.transfer(rows, cap=CAP).regret_accuracy == [None, None]


def test_regret_at():
    found = fit.transfer(table({2: -4.0, 4: -5.0}, cliff=1.2), cap=CAP)
    best = BEST
    assert fit.regret_at(found, 1, 2.0**-5) == 0
    for octave, off in ((-4.0, 1.0), (-4.2, 1.0), (-5.8, 1.0), (-7.6, 2.5), (-8.24, 3.0)):
        assert fit.regret_at(found, 1, 2.0**octave) == pytest.approx(best * math.expm1(0.2 * off**2), rel=1e-9)
    for octave in (-3.5, 0.9, -8.26, 1.26):  # diverges, diverges, below and above the grid
        assert fit.regret_at(found, 1, 2.0**octave) is None
    smooth = fit.transfer(table({2: -4.0, 4: -5.0}), cap=1e9)
    assert fit.regret_at(smooth, 1, 2.0**1.24) == fit.regret_at(smooth, 1, 2.0) > 0
    assert fit.regret_at(smooth, 1, 2.0**1.26) is None
    assert fit.regret_at(smooth._replace(cap=0.5), 1, 2.0) == pytest.approx(0.5 - best)


def test_regret_where_the_grid_does_not_reach():
    rows = [row for row in table({2: -2.0, 8: -6.0}) if row["depth"] == 2 or row["learning_rate"] < 2.0**-4]
    found = fit.transfer(rows, cap=CAP)
    assert found.regret == [pytest.approx(0, abs=1e-12), None]
    assert found.verdict == "does not transfer"


def test_regret():
    """Loss with the smallest size's best LR, minus the best at this size; None where it diverges."""
    found = fit.transfer(table({2: -4.0, 4: -5.0, 8: -5.5}, cliff=1.2), cap=CAP)
    best = BEST
    assert found.regret[0] == pytest.approx(0, abs=1e-12)
    assert found.regret[1] == pytest.approx(best * (math.exp(0.2) - 1), rel=1e-9)
    assert found.regret[2] is None
    assert found.by_regret.verdict == "does not transfer"
    assert found.by_regret.reason == "the best LR of depth 2 diverges, or was not trained, at depth 8"


def test_costs():
    """The share by which the loss is above the best, with the interval of the seeds' ratios; verdicts by regret."""
    found = fit.transfer(table({2: -4.0, 4: -4.5}, noise=0.02), cap=CAP)
    log, at = np.log(found.losses[1]), math.log2(found.optimal_lr[0])
    point = 8 if at >= -4 else 7
    share = (at - math.log2(LRS[point])) / 0.5
    ratios = (1 - share) * log[point] + share * log[point + 1] - log[log.mean(axis=1).argmin()]
    half = stats.t.ppf(0.975, 5) * ratios.std(ddof=1) / math.sqrt(6)
    cost = found.costs[1]
    assert cost == pytest.approx([math.expm1(ratios.mean() + sign * half) for sign in (0, -1, 1)])
    for optima, noise, verdict in (
        ({2: -4.0, 4: -4.0, 8: -4.2}, 0.005, "transfers"),
        ({2: -4.0, 4: -4.5, 8: -4.5}, 0.04, "undecided"),
        ({2: -4.0, 4: -4.25, 8: -4.25}, 0.04, "undecided"),
        ({2: -4.0, 4: -4.0, 8: -5.0}, 0.01, "does not transfer"),
        ({2: -9.0, 4: -4.0}, 0.01, "does not transfer"),
        ({2: -4.0, 4: -9.0}, 0.01, "does not transfer"),
    ):
        law = fit.transfer(table(optima, noise=noise), cap=CAP).by_regret
        assert law.verdict == verdict, law.reason
    beside = fit.transfer(table({2: -4.2}, noise=0.001) + table({4: -4.2}, noise=0.001, cliff=0.1), cap=CAP)
    assert beside.costs[1].high == math.inf
    assert beside.by_regret[1:] == ("undecided", "the next larger LR of the grid diverges at depth 4")
    one = fit.transfer(table({2: -4.0, 4: -4.5}, seeds=1), cap=CAP)
    assert one.by_regret.verdict == "undecided"
    assert math.isnan(one.costs[1].low)


def test_drift_of_the_edge():
    """It has a law of its own, whatever the optimum does."""
    rows = [
        row for size, cliff in {2: 3.0, 4: 2.0, 8: 1.0}.items() for row in table({size: -4.0}, noise=0.02, cliff=cliff)
    ]
    found = fit.transfer(rows, cap=CAP)
    assert (found.verdict, found.edge.verdict) == ("transfers", "does not transfer")
    assert found.edge.drift.octaves_per_doubling == pytest.approx(-1)
    assert fit.transfer(table({2: -4.0, 4: -4.0}), cap=1e9).edge == (
        None,
        "undecided",
        "fewer than two values of depth have an edge inside the grid",
    )


def test_optima_between_the_same_two_grid_points_look_equal():
    """However many seeds agree: the drift may be what fits between the grid points."""
    found = fit.transfer(table({2: -3.9, 4: -3.8, 8: -3.7}, noise=0.001, cliff=0.05), cap=CAP)
    assert all(o.at_edge for o in found.optima)
    assert found.drift.high - found.drift.octaves_per_doubling == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "the table is empty"),
        (table({2: -4.0}), "at least two values"),
        (table({2: -4.0, 4: -4.0})[:-1], "it needs all seeds"),
        (table({2: -4.0, 4: -4.0}) + table({2: -4.0}), "two rows for depth=2"),
        (table({0: -4.0, 4: -4.0}), "depth must be positive, got 0"),
        ([{"depth": 2, "seed": 0, "loss": 1.0}], "a row of the table has no 'learning_rate'"),
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


def test_regret_in_a_gap_of_the_grid():
    """An adaptive sweep has a window of rates and one far from it: between them nothing is known."""
    grid = {2: range(-8, -1), 4: [-7, -6.5, -6, -5.5, -5, -1]}
    rows = [
        {"depth": d, "learning_rate": 2.0**x, "seed": s, "loss": math.exp(0.1 * (x + 5) ** 2 - 2), "diverged": False}
        for d, xs in grid.items() for x in xs for s in range(2)
    ]  # fmt: skip
    found = fit.transfer(rows)
    assert fit.regret_at(found, 1, 2**-5.2) == pytest.approx(0, abs=1e-9)
    assert fit.regret_at(found, 1, 2**-1.0) > 0.1
    for x in (-7.3, -4.6, -3, -1.3, -0.7):
        assert fit.regret_at(found, 1, 2**x) is None


def test_log_losses():
    found = fit.log_losses(np.array([[0.0, 0.5], [0.2, np.nan]]), 0.9)
    np.testing.assert_allclose(np.exp(found), [[0.1, 0.5], [0.2, 0.9]])

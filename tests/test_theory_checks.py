"""experiments/theory_checks.py at small sizes: the numbers of docs/theory.md, in wider bands."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from depthmup.fit import ensemble_errors
from depthmup.theory import Dynamics
from experiments import theory_checks
from experiments.theory_checks import KINDS, Row

ROOT = Path(__file__).parent.parent


def values(rows):
    return np.array([row.value for row in rows])


def test_commands_of_the_theory_exist():
    """Those that docs/theory.md names for its statements."""
    text = " ".join((ROOT / "docs/theory.md").read_text().split())
    assert set(re.findall(r"`theory_checks (\w+)`", text)) == set(theory_checks.CHECKS)
    experiments = set(re.findall(r"(?:\[V: |[;.] )`([a-z]\w+[a-z.]*)(?: [\w =-]+)?`[:;\],]", text)) - {"pytest"}
    assert len(experiments) > 3
    for name in experiments:
        path = ROOT / "experiments" / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), name
    tests = re.findall(r"`pytest (tests/[\w/]+\.py)(?: -k \"?([\w ]+)\"?)?`", text)
    assert len(tests) == text.count("`pytest ") > 20
    for path, words in tests:
        tree = ast.parse((ROOT / path).read_text())
        names = [of.name for of in ast.walk(tree) if isinstance(of, ast.FunctionDef)]
        for word in filter(None, words.split(" or ")):
            assert any(name.startswith("test_") and word in name for name in names), (path, word)


def test_a_row_holds_if_its_whole_interval_lies_in_the_band():
    row = Row("6", "slope", (-1.2, -0.8), -1.0, 0.1)
    assert row.holds
    for other in (dict(half=0.3), dict(value=-1.15), dict(value=-0.85), dict(value=float("nan"))):
        assert not row._replace(**other).holds
    assert "[-1.1, -0.9]" in str(row)
    assert str(row).endswith(" yes")
    assert str(row._replace(half=1.0)).endswith(" NO")


def test_intervals_hold_the_slope():
    rng, sizes = np.random.default_rng(0), [4, 8, 16]
    held = []
    for _ in range(400):
        planted = 3 * np.power(sizes, -0.7) * np.exp(0.1 * rng.normal(size=(6, 3)))
        value, half = theory_checks.slope(sizes, planted)
        held.append(abs(value + 0.7) <= half)
    assert 0.92 < np.mean(held) < 0.98


def test_richness_over_width(monkeypatch):
    """Planted networks, whose kernels move as gamma0^2 and whose best eta0 is sqrt(2)."""

    def networks(problem, *, width, seeds, first_seed, mirrored=False, observe=None):
        rng = np.random.default_rng([width, int(first_seed)])
        if observe is not None:
            moved = 1 + 0.6 * problem.gamma0**2 * (1 + 0.01 * rng.normal(size=seeds))
            return None, np.stack([np.ones(seeds), moved], axis=1)[..., None, None, None] * np.ones((1, 2, 2, 3, 3))
        best = 0.5 + 0.01 * rng.normal(size=seeds)
        off = 0.1 + (np.log2(problem.eta0) - best) ** 2
        predictions = theory_checks.Y + off[:, None, None] * np.ones((seeds, problem.steps, 3))
        return np.where(problem.eta0 > 2, np.nan, predictions)

    monkeypatch.setattr(theory_checks, "train", networks)
    rows = theory_checks.ntp((16, 32, 64), 1024)
    np.testing.assert_allclose(values(rows), [0, 0, -1, 0], atol=0.02)
    assert all(0 < row.half < 0.1 for row in rows)


@pytest.mark.parametrize("ratio", [0.0, 0.1])
def test_limits_that_commute_and_limits_that_do_not(ratio, monkeypatch):
    """A planted term L/N beside all that both limits allow."""

    def networks(problem, *, width, seeds, first_seed):
        rng = np.random.default_rng([int(first_seed), problem.depth])
        mean = 0.7 + 0.2 / problem.depth - 2 / width + 5 / width**2 + ratio * problem.depth / width
        return mean + (0.1 / width) ** 0.5 * rng.normal(size=(seeds, problem.steps, 3))

    monkeypatch.setattr(theory_checks, "train", networks)
    rows = theory_checks.limits_commute()
    assert len(rows) == 6
    for row in rows:
        assert abs(row.value - ratio) < 2 * row.half < 0.06
        assert row.holds == (ratio == 0)


def test_fluctuations(monkeypatch):
    """Slopes in depth of planted ensembles, with no seed twice."""
    rng, firsts = np.random.default_rng(0), []

    def planted(residual, width, depth, seeds, first_seed):
        firsts.append(first_seed)
        scale = np.sqrt(3 / width) if residual else np.sqrt(3 * depth / width)
        return {"H": 7 * (1 + scale * rng.normal(size=seeds)), "F": -7 * (1 + scale * rng.normal(size=seeds))}

    monkeypatch.setattr(theory_checks, "ensemble", planted)
    rows = theory_checks.fluctuations((2, 4, 8, 16), (640, 1280), 2000)
    np.testing.assert_allclose(values(rows), [0, 0, 0, 0, 1, 1, 1, 1], atol=0.1)
    assert np.diff(np.reshape(firsts, (2, 8))).min() >= 2000


def test_plain_networks_have_the_exact_law():
    """Of H before training; training changes it, and the means are those that the learning rate is chosen by."""
    width, depth, seeds = 32, 2, 4000
    samples = theory_checks.ensemble(False, width, depth, seeds, 0)
    variance = ensemble_errors(samples["H, initial"] / samples["H, initial"].mean(dtype=float), 1.0).variance
    expected = (1 + 5 / width) ** (depth - 1) * (1 + 2 / width) - 1
    assert variance.value == pytest.approx(expected, abs=4 * variance.stderr)
    assert variance.stderr < 0.04 * expected
    for name, limit in (("H", 2.0), ("G", 0.5), ("NTK", (depth + 2) / 2)):
        kernels = samples[f"{name}, initial"].astype(float)
        assert kernels.mean() == pytest.approx(limit, abs=4 * kernels.std() / seeds**0.5)
    assert samples["H, 3 steps"].mean() > 1.1 * samples["H, initial"].mean()
    assert 0.5 < samples["F, 3 steps"].mean() < 1.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_exponents_in_depth(kind):
    rows = theory_checks.mean_change_over_depth((8, 16), 128, 4, (kind,))
    assert len(rows) == (3 if kind == "depth-muP" else 5)
    first = rows[:3]  # with the readout 1/N; the others are noisy
    wanted = [theory_checks.exponent(kind, variant) for variant in theory_checks.VARIANTS[:3]]
    np.testing.assert_allclose(values(first), wanted, atol=0.4, err_msg="\n".join(map(str, rows)))


def test_exponents_in_width():
    """The readout 1/sqrt(N) costs half a power of the width; averaging over as many outputs restores it."""
    rows = theory_checks.mean_change_over_width((64, 256), 3, 4)
    mean_field, standard, *_ = values(rows[5:])
    assert standard - mean_field == pytest.approx(-0.5, abs=1e-3)  # one sample: the same gradient, scaled
    assert mean_field == pytest.approx(0, abs=0.3)
    assert values(rows[5:])[-1] == pytest.approx(0, abs=0.3)


def test_changes_by_each_block():
    """They add up to the change by all blocks."""
    of = theory_checks.net("branches of one layer", 32, 3)
    alone = theory_checks.by_layer(of, 2)
    assert alone.shape == (2, 3, 4, 32)
    assert (alone[:, 2, :3] == 0).all()
    total = (alone.sum(1) ** 2).mean((1, 2))
    np.testing.assert_allclose(total, theory_checks.mean_changes(of, [theory_checks.Variant()], 2)[0], rtol=1e-4)


def test_overlaps_of_plain_networks():
    diagonal, off_diagonal = theory_checks.overlaps(256, 5, 6)
    assert diagonal.value == pytest.approx(1, abs=0.3)
    assert off_diagonal.value == pytest.approx(1, abs=0.3)


def test_small_steps_are_linear():
    rows = theory_checks.first_order(64, 4, 3, (0.01, 1.0))
    small, large = values(rows).reshape(5, 2).T
    np.testing.assert_allclose(small, 1, atol=0.02)
    assert np.ptp(large) > 0.01


@pytest.mark.parametrize(("band", "answer"), [(True, "yes"), (False, "NO")])
def test_descent_against_a_wrong_limit(monkeypatch, band, answer):
    """Networks of a planted limit: found where the limit is right, and missed where it is not."""

    def networks(problem, *, width, seeds, first_seed, batches):
        rng = np.random.default_rng(first_seed)
        shape = (seeds, problem.steps, *np.shape(problem.y))
        return 0.7 + 0.5 / width + 0.3 / np.sqrt(width) * rng.normal(size=shape)

    def limit(problem, samples):
        predictions = np.full((problem.steps, *np.shape(problem.y)), 0.7 if band else 0.72)
        return Dynamics(predictions, None, None, None, None, stderr=np.zeros_like(predictions))

    monkeypatch.setattr(theory_checks, "train", networks)
    monkeypatch.setattr(theory_checks, "dmft", limit)
    rows = theory_checks.descent()
    assert len(rows) == 10
    assert all(str(row).endswith(answer) for row in rows)


def test_training_finds_the_best_rate_of_each_seed(monkeypatch):
    """Of planted losses whose best rate falls as 1/L, off by half an octave in one seed."""

    def losses(of, log2_rates, seeds, steps):
        best = -np.log2(of.model.depth) + np.where(np.arange(seeds) == 0, 0.5, 0)
        return (np.asarray(log2_rates) - best[:, None]) ** 2

    monkeypatch.setattr(theory_checks, "final_losses", losses)
    (row,) = theory_checks.training(kinds=("branches of one layer",), seeds=3)
    assert row.value == pytest.approx(-1, abs=1e-9)
    assert row.half < 1e-6
    (row,) = theory_checks.training(kinds=("plain",), seeds=3, log2_rates=(-4, -3, -2))
    assert "75% at the edge of the grid" in row.statement


def test_training_descends():
    of = theory_checks.net("plain", 32, 3)
    low, good, diverged = theory_checks.final_losses(of, (-12, -4, 12), 2, 20).T
    assert (good < low - 0.1).all()
    assert (diverged > good).all()

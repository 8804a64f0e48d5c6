"""Planted exponents, other libraries' fits, and predictions within segments."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import curve_fit

from depthmup import fit

DEPTHS = np.array([3, 4, 6, 8, 12, 16, 24])
LRS = 2.0 ** np.arange(-8, 1.01, 0.5)
CAP = math.log(10)
SWEEPS = 400


def sweep(exponent, rng, seeds=6, growth=1.0):
    """Optima at each depth: parabolas of log loss over log2 LR, noise that grows to `growth`-fold, a cliff above."""
    optima = []
    for depth in DEPTHS:
        centre = (-1.5 if exponent < 0 else -4.0) + exponent * math.log2(depth / DEPTHS[0])
        x = np.log2(LRS)[:, None] - centre
        noise = 0.05 * growth ** (math.log(depth / DEPTHS[0]) / math.log(DEPTHS[-1] / DEPTHS[0]))
        losses = np.exp(0.2 * x**2 - 2 + noise * rng.normal(size=(len(LRS), seeds)))
        cliff = 1.5 + 0.2 * rng.normal(size=seeds)
        optima.append(fit.optimum(LRS, np.where(x > cliff, np.nan, losses), CAP))
    return optima


@pytest.fixture(scope="module", params=[-1.5, 0.0])
def sweeps(request):
    rng = np.random.default_rng(0)
    return request.param, [sweep(request.param, rng) for _ in range(SWEEPS)]


@pytest.mark.parametrize("weighted", [True, False])
def test_intervals_cover_planted_exponents(sweeps, weighted):
    """The exponent's interval, and the band at a depth between those measured, of 400 sweeps."""
    exponent, results = sweeps
    laws = [
        fit.power_law(DEPTHS, [o.learning_rate for o in optima], [o.stderr for o in optima] if weighted else None)
        for optima in results
    ]
    assert all(law.weighted == weighted for law in laws)
    exponents = np.array([law.exponent for law in laws])
    assert exponents.mean() == pytest.approx(exponent, abs=4 * exponents.std() / math.sqrt(SWEEPS))
    assert 0.92 <= np.mean([law.low <= exponent <= law.high for law in laws]) <= 0.98
    truth = 2 ** (-1.5 if exponent < 0 else -4.0) * (10 / DEPTHS[0]) ** exponent
    bands = [law.band(10) for law in laws]
    assert 0.92 <= np.mean([low <= truth <= high for low, high in bands]) <= 0.98


@pytest.mark.parametrize("seeds", [3, 6])
def test_weights_are_safe_with_few_seeds(seeds):
    """Equal noise, standard errors known from few seeds only: the weights must not narrow the interval."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        stderr = np.sqrt(rng.chisquare(seeds - 1, size=len(DEPTHS)) / (seeds - 1))
        law = fit.power_law(DEPTHS, 2 ** rng.normal(size=len(DEPTHS)), stderr)
        covered += law.low <= 0 <= law.high
    assert 920 <= covered <= 980


def test_weights_help_where_the_noise_grows():
    """Exponents scatter less with the standard errors than without."""
    rng = np.random.default_rng(2)
    exponents = []
    for _ in range(100):
        optima = sweep(-1.0, rng, growth=6)
        lrs = [o.learning_rate for o in optima]
        exponents.append([fit.power_law(DEPTHS, lrs, s).exponent for s in (None, [o.stderr for o in optima])])
    ordinary, weighted = np.std(exponents, axis=0)
    assert weighted < 0.9 * ordinary


@pytest.fixture
def points():
    rng = np.random.default_rng(3)
    return 0.3 * DEPTHS**-1.2 * 2 ** (0.2 * rng.normal(size=len(DEPTHS))), rng.uniform(0.05, 0.4, len(DEPTHS))


def test_ordinary_equals_linregress(points):
    lrs, _ = points
    law, other = fit.power_law(DEPTHS, lrs), stats.linregress(np.log2(DEPTHS), np.log2(lrs))
    assert not law.weighted
    assert law.exponent == pytest.approx(other.slope, rel=1e-9)
    assert math.log2(law.coefficient) == pytest.approx(other.intercept, rel=1e-9)
    assert law.r2 == pytest.approx(other.rvalue**2, rel=1e-9)
    assert np.sqrt(np.diag(law.covariance)) == pytest.approx([other.stderr, other.intercept_stderr], rel=1e-9)
    half = stats.t.ppf(0.975, len(DEPTHS) - 2) * other.stderr
    assert (law.low, law.high) == pytest.approx((other.slope - half, other.slope + half), rel=1e-9)


def test_weighted_equals_curve_fit(points):
    lrs, stderr = points
    law = fit.power_law(DEPTHS, lrs, stderr)
    sigma = np.sqrt(stderr**2 + np.mean(stderr**2))
    line, covariance = curve_fit(lambda x, a, b: a * x + b, np.log2(DEPTHS), np.log2(lrs), p0=(-1, -1), sigma=sigma)
    assert law.weighted
    assert (law.exponent, math.log2(law.coefficient)) == pytest.approx(tuple(line), rel=1e-6)
    np.testing.assert_allclose(law.covariance, covariance, rtol=1e-6)
    (xx, xy), (_, yy) = np.cov(np.log2(DEPTHS), np.log2(lrs), aweights=sigma**-2)
    assert law.r2 == pytest.approx(xy**2 / (xx * yy), rel=1e-9)
    half = stats.t.ppf(0.975, len(DEPTHS) - 2) * math.sqrt(covariance[0, 0])
    assert law.high - law.low == pytest.approx(2 * half, rel=1e-6)


def test_band_is_that_of_the_line(points):
    """At depth d it is the interval of the coefficient when depths are counted in units of d."""
    lrs, stderr = points
    law = fit.power_law(DEPTHS, lrs, stderr)
    for depth in (1, 5, 40):
        law_at_depth = fit.power_law(DEPTHS / depth, lrs, stderr)
        half = stats.t.ppf(0.975, len(DEPTHS) - 2) * math.sqrt(law_at_depth.covariance[1, 1])
        low, high = law.band(depth)
        assert (low, high) == pytest.approx(
            (law_at_depth.coefficient / 2**half, law_at_depth.coefficient * 2**half), rel=1e-9
        )
        assert law(depth) == pytest.approx(law_at_depth.coefficient, rel=1e-9)


def test_exact_line():
    law = fit.power_law(DEPTHS, 0.5 * DEPTHS**-1.5)
    assert (law.exponent, law.coefficient, law.r2) == pytest.approx((-1.5, 0.5, 1), rel=1e-9)
    np.testing.assert_allclose(law([2, 5]), 0.5 * np.array([2, 5]) ** -1.5, rtol=1e-9)
    np.testing.assert_allclose(law.band([2, 5]), [law([2, 5])] * 2, rtol=1e-6)
    assert math.isnan(fit.power_law(DEPTHS, np.full(7, 0.1)).r2)


def test_points_without_an_optimum_are_left_out(points):
    lrs, stderr = points
    some = [None, *lrs[1:-1], math.nan]
    errors = np.array([math.nan, *stderr[1:-1], math.nan])
    law, trimmed = fit.power_law(DEPTHS, some, errors), fit.power_law(DEPTHS[1:-1], lrs[1:-1], stderr[1:-1])
    assert law.weighted
    assert (law.exponent, law.low, law.high) == (trimmed.exponent, trimmed.low, trimmed.high)
    assert law.depths.tolist() == DEPTHS[1:-1].tolist()
    assert law.learning_rates.tolist() == lrs[1:-1].tolist()


@pytest.mark.parametrize("unknown", [np.zeros(7), [math.nan, *[0.1] * 6], [math.nan] * 7])
def test_ordinary_without_standard_errors(points, unknown):
    lrs, _ = points
    law = fit.power_law(DEPTHS, lrs, unknown)
    assert (law.weighted, law.exponent) == (False, fit.power_law(DEPTHS, lrs).exponent)


def test_a_standard_error_of_zero_is_no_certainty(points):
    lrs, stderr = points
    law = fit.power_law(DEPTHS, lrs, [0, *stderr[1:]])
    assert law.weighted
    assert abs(math.log2(law(DEPTHS[0]) / lrs[0])) > 0.02


@pytest.mark.parametrize(
    ("depths", "lrs", "stderr", "message"),
    [
        ([0, 2, 4], [1, 1, 1], None, "depths must be positive"),
        ([1, 2, math.nan], [1, 1, 1], None, "depths must be positive"),
        ([1, 2, 4], [1, 1], None, "depths and learning rates must be as many of each"),
        ([1, 2, 4], [1, 1, 0], None, "learning rates must be positive"),
        ([1, 2, 4], [1, 1, math.inf], None, "learning rates must be positive"),
        ([1, 2, 4], [1, 1, 1], [0.1, 0.1], "depths and standard errors differ in length"),
        ([1, 2, 4], [1, 1, 1], [0.1, 0.1, -0.1], "standard errors must be at least 0"),
        ([1, 2], [1, 1], None, "three optima, got 2 of 2$"),
        ([1, 2, 4, 8], [1, None, 1, math.nan], None, r"got 2 of 4 \(no optimum at depth 2, 8\)"),
        ([4, 4, 4], [1, 1, 2], None, "different depths, all are 4"),
    ],
)
def test_errors(depths, lrs, stderr, message):
    with pytest.raises(ValueError, match=message):
        fit.power_law(depths, lrs, stderr)


def test_segments_of_an_exact_law():
    depths = list(range(3, 31))
    segments = fit.segmented(depths, [d**-1.4 for d in depths])
    assert [(s.name, s.anchors, s.depths) for s in segments] == [
        ("A", (3, 4), [5, 6, 7, 8, 9]),
        ("B", (10, 11), [12, 13, 14, 15, 16]),
        ("C", (18, 20), [22, 23, 24, 25, 26, 27, 28, 29, 30]),
    ]
    for segment in segments:
        assert segment.exponent == pytest.approx(-1.4)
        np.testing.assert_allclose(segment.predicted, np.array(segment.depths) ** -1.4, rtol=1e-9)
        np.testing.assert_allclose(segment.relative_error, 0, atol=1e-9)


def test_segments_of_a_broken_law():
    """Slope -1 up to depth 6, -2 beyond: the prediction from 3 and 4 is d/6 times too large; above 10 it is right."""
    depths = np.array([16, 3, 4, 5, 6, 8, 9, 10, 11])
    lrs = np.where(depths <= 6, 1 / depths, 6.0 / depths**2)
    first, second = fit.segmented(depths, lrs)
    assert (first.name, first.depths) == ("A", [5, 6, 8, 9])
    np.testing.assert_allclose(first.relative_error, [0, 0, 8 / 6 - 1, 9 / 6 - 1], atol=1e-9)
    assert (second.exponent, second.depths) == (pytest.approx(-2), [16])
    np.testing.assert_allclose(second.relative_error, 0, atol=1e-9)


def test_segments_that_cannot_be_judged_are_left_out():
    depths = [3, 4, 5, 10, 11, 12, 18, 20, 21]
    assert [s.name for s in fit.segmented(depths, [1.0] * 9)] == ["A", "B"]
    assert [s.name for s in fit.segmented(depths, [1, None, 1, 1, 1, 1, 1, 1, 1])] == ["B"]
    assert [s.name for s in fit.segmented(depths, [1, 1, 1, 1, 1, math.nan, 1, 1, 1])] == ["A"]
    assert [s.depths for s in fit.segmented([1, 2, 3], [1.0] * 3, {"own": ((1, 2), [3, 4])})] == [[3]]
    with pytest.raises(ValueError, match="every depth may occur once"):
        fit.segmented([3, 4, 4], [1.0] * 3)

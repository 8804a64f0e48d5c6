"""Planted errors of finite width and depth, and of ensembles: values, intervals, and what is not enough to tell."""

import math

import numpy as np
import pytest
from scipy.optimize import curve_fit, nnls

from depthmup import fit

WIDTHS, DEPTHS = (grid.ravel() for grid in np.meshgrid([64.0, 128, 256, 512], [4.0, 8, 16]))
TRUTH = {"v": 0.45, "m2": 1.21, "k": 0.25, "cross": -1.1}
COLUMNS = {"v": 1 / WIDTHS, "m2": WIDTHS**-2, "k": DEPTHS**-2, "cross": 1 / (WIDTHS * DEPTHS)}


def planted(terms):
    return sum(TRUTH[term] * COLUMNS[term] for term in TRUTH if term in terms)


def networks(rng, seeds, width, depth, outputs=1, m=1.1, d=-0.5, v=0.45):
    """(seeds, outputs) of which the limit is 0."""
    return m / width + d / depth + math.sqrt(v / width) * rng.normal(size=(seeds, outputs))


@pytest.mark.parametrize("stderr", [None, np.linspace(1, 3, 12), np.zeros(12)])
@pytest.mark.parametrize(
    "terms",
    [("v", "m2", "k", "cross"), ("v", "m2", "k"), ("v", "m2"), ("v",), ("k", "v", "k"), ("v", "cross"), ("m2", "k")],
)
def test_exact_values_give_the_coefficients(terms, stderr):
    coefficients = fit.finite_size(WIDTHS, DEPTHS, planted(terms), stderr, terms)
    for term, coefficient in coefficients._asdict().items():
        assert (coefficient is None) == (term not in terms)
        if term in terms:
            assert coefficient == pytest.approx([TRUTH[term]] * 3, abs=1e-10)
    np.testing.assert_allclose(coefficients.predict(WIDTHS, DEPTHS), planted(terms), rtol=1e-10)


def test_default_terms():
    """All with finite depths, also if some are infinite; those of width without."""
    everything = fit.finite_size(WIDTHS, DEPTHS, planted(TRUTH))
    assert [c.value for c in everything] == pytest.approx(list(TRUTH.values()), abs=1e-10)
    depths = np.where(DEPTHS == 16, math.inf, DEPTHS)
    errors = TRUTH["v"] / WIDTHS + TRUTH["m2"] / WIDTHS**2 + TRUTH["k"] / depths**2 + TRUTH["cross"] / (WIDTHS * depths)
    mixed = fit.finite_size(WIDTHS, depths, errors)
    assert [c.value for c in mixed] == pytest.approx(list(TRUTH.values()), abs=1e-10)
    for none in (None, np.full(12, math.inf)):
        widths_only = fit.finite_size(WIDTHS, none, planted(("v", "m2")))
        assert (widths_only.v.value, widths_only.m2.value) == pytest.approx((0.45, 1.21), abs=1e-10)
        assert widths_only.k is widths_only.cross is None


def test_equals_curve_fit():
    """Values and standard errors, where the standard errors given are a smooth function already."""
    rng = np.random.default_rng(0)
    stderr = 0.01 * WIDTHS**-1.3 * np.exp(2 / DEPTHS)
    errors = planted(TRUTH) + stderr * rng.normal(size=12)
    coefficients = fit.finite_size(WIDTHS, DEPTHS, errors, stderr)
    design = np.stack(list(COLUMNS.values()))
    values, covariance = curve_fit(lambda x, *c: np.array(c) @ x, design, errors, p0=[1.0] * 4, sigma=stderr)
    assert [c.value for c in coefficients] == pytest.approx(values.tolist(), rel=1e-5)
    half = 2.3060041350 * np.sqrt(np.diag(covariance))  # Student's t with 12 - 4 degrees
    assert [c.high - c.value for c in coefficients] == pytest.approx(half.tolist(), rel=1e-5)
    assert coefficients.cross.value - coefficients.cross.low == pytest.approx(half[3], rel=1e-5)
    scaled = fit.finite_size(WIDTHS, DEPTHS, errors, 10 * stderr)  # intervals are from the scatter
    np.testing.assert_allclose(scaled, coefficients, rtol=1e-9)


def test_no_term_but_cross_is_negative():
    """Where the unbounded fit wants m2 to be, the others are those of scipy's non-negative fit."""
    stderr = 0.03 / WIDTHS
    errors = planted(("v", "k")) - 2 * COLUMNS["m2"] + stderr * np.random.default_rng(1).normal(size=12)
    coefficients = fit.finite_size(WIDTHS, DEPTHS, errors, stderr, ("v", "m2", "k"))
    nonnegative, _ = nnls(np.stack([COLUMNS[t] / stderr for t in ("v", "m2", "k")], axis=1), errors / stderr)
    assert [c.value for c in (coefficients.v, coefficients.m2, coefficients.k)] == pytest.approx(
        nonnegative.tolist(), rel=1e-9
    )
    assert coefficients.m2.low == coefficients.m2.value == 0 < coefficients.m2.high
    assert coefficients.v.low < coefficients.v.value < coefficients.v.high
    assert all(c.low <= c.value <= c.high for c in (coefficients.v, coefficients.m2, coefficients.k))
    far = fit.finite_size(WIDTHS, DEPTHS, errors - 4 * COLUMNS["m2"], stderr, ("v", "m2", "k"))
    assert far.m2 == (0, 0, 0)  # the interval of the unbounded fit lies below 0
    assert far.v.low <= far.v.value <= far.v.high


def test_order_of_points_is_indifferent():
    rng = np.random.default_rng(1)
    stderr = 0.1 * planted(TRUTH) * rng.uniform(0.5, 2, 12)
    errors = planted(TRUTH) + stderr * rng.normal(size=12)
    coefficients = fit.finite_size(WIDTHS, DEPTHS, errors, stderr)
    order = rng.permutation(12)
    np.testing.assert_allclose(
        fit.finite_size(WIDTHS[order], DEPTHS[order], errors[order], stderr[order]), coefficients, rtol=1e-8
    )
    assert all(c.low <= c.value <= c.high for c in coefficients)


def test_a_standard_error_of_zero_is_no_certainty():
    rng = np.random.default_rng(2)
    stderr = 0.1 / WIDTHS
    errors = planted(TRUTH) + stderr * rng.normal(size=12)
    for same, other in ((np.where(np.arange(12) == 5, 0, stderr), stderr), (np.zeros(12), None)):
        coefficients = fit.finite_size(WIDTHS, DEPTHS, errors, same)
        np.testing.assert_allclose(coefficients, fit.finite_size(WIDTHS, DEPTHS, errors, other), rtol=1e-9)


@pytest.fixture(scope="module")
def ensembles():
    """600 times those of 40 seeds at each size."""
    rng = np.random.default_rng(3)
    return [
        [fit.ensemble_errors(networks(rng, 40, n, d), [0]) for n, d in zip(WIDTHS, DEPTHS, strict=True)]
        for _ in range(600)
    ]


@pytest.mark.parametrize(
    ("part", "terms", "least"),
    [
        ("squared_error", ("v", "m2", "k", "cross"), 0.925),
        ("variance", ("v",), 0.925),
        ("squared_bias", ("m2", "k", "cross"), 0.915),
    ],
)
def test_intervals_hold_the_truth(ensembles, part, terms, least):
    """And v, whose points weigh by standard errors that are small where the variance is, is not drawn down by that."""
    hold, v = [], []
    for at_sizes in ensembles:
        errors, stderr = np.array([getattr(ensemble, part) for ensemble in at_sizes]).T
        coefficients = fit.finite_size(WIDTHS, DEPTHS, errors, stderr, terms)._asdict()
        hold.append([coefficients[term].low <= TRUTH[term] <= coefficients[term].high for term in terms])
        v.append(coefficients["v"].value if "v" in terms else 0.45)
    assert ((least <= np.mean(hold, axis=0)) & (np.mean(hold, axis=0) <= 0.98)).all()
    assert part != "variance" or np.mean(v) == pytest.approx(0.45, rel=0.025)


def test_without_cross_the_biases_are_wrong():
    coefficients = fit.finite_size(WIDTHS, DEPTHS, planted(TRUTH), terms=("v", "m2", "k"))
    assert coefficients.k.high < 0.25
    assert fit.finite_size(WIDTHS, DEPTHS, planted(TRUTH)).k == pytest.approx([0.25] * 3, abs=1e-10)


def test_parts_of_the_error_are_unbiased():
    """Of 5 seeds and 3 outputs; the plain square of the mean's distance holds a fifth of the variance too."""
    rng = np.random.default_rng(4)
    limit = np.array([[1.0, -2.0, 0.5]])
    bias = np.array([[0.1, -0.3, 0.2]])
    draws = [limit + bias + 0.5 * rng.normal(size=(5, 1, 3)) for _ in range(4000)]
    estimates = [fit.ensemble_errors(draw, limit) for draw in draws]
    for part, truth in (
        ("variance", 0.25),
        ("squared_bias", np.mean(bias**2)),
        ("squared_error", 0.25 + np.mean(bias**2)),
    ):
        values, stderr = np.array([getattr(one, part) for one in estimates]).T
        off = values.mean() - truth
        assert abs(off) < 3 * values.std() / math.sqrt(4000)
        # Of a bias that is small beside the noise the jackknife's variance is up to twice the true one.
        assert 0.9 < np.mean(stderr**2) / values.var() < (2 if part == "squared_bias" else 1.35)
    naive = np.array([np.mean((draw.mean(axis=0) - limit) ** 2) for draw in draws])
    assert naive.mean() - np.mean(bias**2) > 10 * naive.std() / math.sqrt(4000)
    assert min(one.squared_bias.value for one in estimates) < 0


def test_parts_of_the_error_by_hand():
    rng = np.random.default_rng(5)
    values, limit = rng.normal(size=(6, 2, 3)), rng.normal(size=(2, 3))

    def parts(seeds):
        error = np.mean((seeds - limit) ** 2)
        variance = np.mean(np.var(seeds, axis=0, ddof=1))
        return np.array([variance, error - variance, error])

    estimates = fit.ensemble_errors(values, limit)
    assert [one.value for one in estimates] == pytest.approx(parts(values).tolist(), rel=1e-12)
    without = np.array([parts(np.delete(values, i, axis=0)) for i in range(6)])
    jackknife = np.sqrt(5 / 6 * ((without - without.mean(axis=0)) ** 2).sum(axis=0))
    assert [one.stderr for one in estimates] == pytest.approx(jackknife.tolist(), rel=1e-12)


def test_mean_of_an_ensemble():
    """Its squared error is v/(E N) + m2/N^2 + k/L^2 + cross/(N L)."""
    rng = np.random.default_rng(6)
    law = fit.FiniteSize(*(fit.Coefficient(value, value, value) for value in TRUTH.values()))
    for size in (1, 10):
        means = networks(rng, 4000 * size, 64, 8).reshape(4000, size).mean(axis=1)
        error = fit.ensemble_errors(means, 0).squared_error
        assert abs(error.value - law.predict(64, 8, ensemble=size)) < 3 * error.stderr
    assert law.predict(64, 8, 10) == pytest.approx(0.045 / 64 + 1.21 / 64**2 + 0.25 / 8**2 - 1.1 / (64 * 8), rel=1e-12)
    assert law.predict([64, 128]) == pytest.approx([0.45 / n + 1.21 / n**2 for n in (64, 128)], rel=1e-12)
    assert law.predict(64, [4, 8]) == pytest.approx([law.predict(64, 4), law.predict(64, 8)], rel=1e-12)
    assert fit.FiniteSize(v=law.v).predict(64, 8) == pytest.approx(0.45 / 64, rel=1e-12)


def test_rates(ensembles):
    """Of the variance's exponents in width and, times N, in depth."""
    hold = []
    for at_sizes in ensembles:
        variances, stderr = np.array([ensemble.variance for ensemble in at_sizes]).T
        octaves = stderr / variances / math.log(2)
        in_width = fit.power_law(WIDTHS, variances, octaves)
        in_depth = fit.power_law(DEPTHS, WIDTHS * variances, octaves)
        hold.append([in_width.low <= -1 <= in_width.high, in_depth.low <= 0 <= in_depth.high])
    assert ((0.92 <= np.mean(hold, axis=0)) & (np.mean(hold, axis=0) <= 0.98)).all()


def test_table():
    law = fit.FiniteSize(v=fit.Coefficient(0.45, 0.4, 0.5), cross=fit.Coefficient(-1.1, -2.25, 0.05))
    assert str(law).splitlines() == [
        "term        value  95% interval",
        "v            0.45  [0.4, 0.5]",
        "cross        -1.1  [-2.25, 0.05]",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"widths": -WIDTHS}, "widths must be positive and finite, got -64"),
        ({"widths": WIDTHS * math.inf}, "widths must be positive and finite, got inf"),
        ({"depths": 0 * DEPTHS}, "depths must be positive, got 0"),
        ({"depths": DEPTHS * math.nan}, "depths must be positive, got nan"),
        ({"errors": -planted(TRUTH)}, "errors must not be negative .squared biases may, but need stderr"),
        ({"errors": np.full(12, math.nan), "stderr": np.ones(12)}, "^errors must be finite, got nan"),
        ({"stderr": -np.ones(12)}, "standard errors must be at least 0, got -1"),
        ({"stderr": np.full(12, math.inf)}, "standard errors must be at least 0 and finite, got inf"),
        ({"widths": WIDTHS[:5]}, r"must be \(points,\), got \(5,\), \(12,\)"),
        ({"depths": DEPTHS[:5]}, r"must be \(points,\), got \(12,\), \(5,\)"),
        ({"errors": WIDTHS[:5]}, r"must be \(points,\)"),
        ({"stderr": WIDTHS[:5]}, r"must be \(points,\)"),
        ({"terms": ("v", "m")}, "unknown term 'm'"),
    ],
)
def test_errors(change, message):
    with pytest.raises(ValueError, match=message):
        fit.finite_size(**{"widths": WIDTHS, "depths": DEPTHS, "errors": planted(TRUTH)} | change)


@pytest.mark.parametrize(
    ("widths", "depths", "terms", "message"),
    [
        ([64, 128, 256, 512], [4, 8, 4, 8], (), "v, m2, k, cross with intervals need at least 5 points, got 4"),
        ([64, 128], None, (), "v, m2 with intervals need at least 3 points, got 2"),
        ([64] * 5, [4, 8, 16, 32, 64], (), "tell v, m2, k, cross apart: add one more width, or"),
        ([64] * 5, None, (), "tell v, m2 apart: add one more width, or"),
        ([64, 128, 256, 512], [8] * 4, ("v", "m2", "k"), None),  # a constant is told from powers of the width
        ([64, 128] * 2, [8] * 4, ("v", "m2", "k"), "tell v, m2, k apart: add one more width, or"),
        ([64, 128, 256, 512], None, ("v", "k"), "tell v, k apart: add one more finite depth, or"),
        ([64, 128, 256, 512], [4, 8, 16, 32], ("m2", "k"), "tell m2, k apart: add one more width, or"),
        ([64] * 6, [8] * 6, (), "add one more width and one more finite depth, or give other terms"),
    ],
)
def test_points_that_do_not_suffice(widths, depths, terms, message):
    errors = np.ones(len(widths))
    if message is None:
        assert fit.finite_size(widths, depths, errors, terms=terms).k.value == pytest.approx(64)
        return
    with pytest.raises(ValueError, match=message):
        fit.finite_size(widths, depths, errors, terms=terms)


@pytest.mark.parametrize(
    ("predictions", "limit", "message"),
    [
        (np.ones((1, 2)), np.ones(2), "three seeds, got 1"),
        (np.ones((2, 2)), np.ones(2), "three seeds, got 2"),
        (np.ones((4, 2)), np.ones(3), r"limit \(...\), got \(4, 2\) and \(3,\)"),
        (np.ones(4), np.ones(4), r"limit \(...\), got \(4,\) and \(4,\)"),
        (1.0, 1.0, r"\(seeds, ...\)"),
        (np.ones((4, 0)), np.ones(0), r"\(seeds, ...\)"),
        ([1, 2, math.nan], 1.0, "leave out the seeds that diverged"),
        ([1, 2, 3], math.inf, "must be finite"),
    ],
)
def test_errors_of_ensembles(predictions, limit, message):
    with pytest.raises(ValueError, match=message):
        fit.ensemble_errors(predictions, limit)

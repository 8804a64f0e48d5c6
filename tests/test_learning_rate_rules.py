"""Rules for the learning rate on planted optima, and when an optimum is settled."""

import math

import numpy as np
import pytest

from depthmup import fit

LRS = 2.0 ** np.arange(-14, 1.01, 0.5)
CAP = math.log(10)
DEPTHS = [2, 4, 8, 16]
PATH_SUMS = {depth: fit.chain_path_sum([(0, 1)] * depth) for depth in DEPTHS}


LEVELS = np.array([-0.1, 0.1])  # of the seeds
BEST = math.exp(-2) * np.exp(LEVELS).mean()


def curve(optimum):
    return np.exp(0.05 * (np.log2(LRS)[:, None] - optimum) ** 2 - 2 + LEVELS)


def transfer(optima, cliff=math.inf):
    """Of {depth: log2 optimum}; every seed diverges more than `cliff` octaves above it."""
    rows = [
        {"depth": depth, "learning_rate": lr, "seed": seed, "loss": math.nan if math.log2(lr) > best + cliff else loss}
        for depth, best in optima.items()
        for lr, losses in zip(LRS, curve(best), strict=True)
        for seed, loss in enumerate(losses)
    ]
    return fit.transfer(rows, cap=CAP)


def planted(exponent):
    return {depth: -1.0 + exponent * math.log2(depth / 2) for depth in DEPTHS}


def rules(result, **given):
    return {rule.name: rule for rule in fit.learning_rate_rules(result, **given)}


@pytest.mark.parametrize(
    ("optima", "right"),
    [
        (planted(0), {"constant", "fitted"}),
        (planted(-1), {"L^-1", "fitted"}),
        (planted(-1.5), {"L^-3/2", "fitted"}),
        ({depth: -1.0 - 0.5 * math.log2(PATH_SUMS[depth] / PATH_SUMS[2]) for depth in DEPTHS}, {"PathSum"}),
    ],
)
def test_the_planted_rule_is_right(optima, right):
    """And only that one: off by nothing, no regret; the others are off by what their slopes differ."""
    result = transfer(optima)
    by_name = rules(result, path_sums=PATH_SUMS)
    assert list(by_name) == ["constant", "L^-1", "L^-3/2", "PathSum", "fitted"]
    assert {name for name, rule in by_name.items() if rule.worst < 1e-6} == right
    for name, slope in (("constant", 0), ("L^-1", -1), ("L^-3/2", -1.5)):
        rule = by_name[name]
        expected = [(-1 + slope * math.log2(d / 2)) - optima[d] for d in DEPTHS]
        np.testing.assert_allclose(rule.octaves_off, expected, atol=1e-9)
        np.testing.assert_allclose(np.log2(rule.predicted), [-1 + slope * math.log2(d / 2) for d in DEPTHS], atol=1e-9)
        assert rule.worst == pytest.approx(max(map(abs, expected)), abs=1e-9)
        assert rule.mean == pytest.approx(sum(map(abs, expected)) / 3, abs=1e-9)
        assert rule.regret == [fit.regret_at(result, i, lr) for i, lr in enumerate(rule.predicted)]


def test_fitted_uses_all_smaller_sizes():
    """The line through two optima exactly, through three by least squares; none before."""
    rule = rules(transfer({2: -1.0, 4: -2.0, 8: -2.5, 16: -4.0}))["fitted"]
    assert rule.predicted[:2] == [None, None]
    np.testing.assert_allclose(np.log2(rule.predicted[2:]), [-3, -4 / 3 - 2], atol=1e-9)
    np.testing.assert_allclose(rule.octaves_off[2:], [-0.5, 2 / 3], atol=1e-9)
    assert (rule.regret[:2], rule.worst, rule.mean) == ([None, None], pytest.approx(2 / 3), pytest.approx(7 / 12))


def test_sizes_without_an_optimum():
    """Depth 2 has none: rules start from depth 4; at 16, too, there is nothing to compare with."""
    result = transfer({2: 3.0, 4: -2.0, 8: -3.0, 16: -16.0})
    by_name = rules(result, path_sums={4: 1, 8: 4}, calibrated={"calibrated": {4: 0.3, 8: 0.15, 16: None}})
    constant = by_name["constant"]
    assert constant.octaves_off == [None, 0, pytest.approx(1), None]
    assert (constant.tuned, constant.worst, constant.mean) == (1, pytest.approx(1), pytest.approx(1))
    np.testing.assert_allclose(np.log2(by_name["L^-1"].predicted), [-1, -2, -3, -4], atol=1e-9)
    for name in ("PathSum", "calibrated"):
        assert by_name[name].predicted == [None, pytest.approx(0.25), pytest.approx(0.125), None]
    assert by_name["fitted"].predicted == [None, None, None, pytest.approx(2.0**-4)]
    assert (by_name["fitted"].worst, by_name["fitted"].mean) == (None, None)
    assert fit.learning_rate_rules(transfer({2: 3.0, 4: 3.0})) == []


def test_regret_of_a_rule():
    """None where the prediction diverges, or is off the grid."""
    by_name = rules(transfer(planted(-1), cliff=1.2))
    assert by_name["constant"].regret[:2] == [0, pytest.approx(BEST * math.expm1(0.05))]
    assert by_name["constant"].regret[2:] == [None, None]
    assert by_name["constant"].octaves_off[2:] == pytest.approx([2, 3])
    off = rules(transfer({2: -12.0, 4: -12.5, 8: -12.5}))["L^-3/2"]
    assert off.predicted[2] == pytest.approx(2.0**-15)
    assert (off.regret[1] is None, off.regret[2]) == (False, None)


def test_calibrated_and_path_sums_count_relative_to_the_tuned_size():
    huge = {depth: 10**400 * depth**2 for depth in DEPTHS}  # no float holds them
    by_name = rules(
        transfer(planted(-1)), path_sums=huge, calibrated={"calibrated": {depth: 7.0 / depth for depth in DEPTHS}}
    )
    for name in ("PathSum", "calibrated"):
        np.testing.assert_allclose(by_name[name].predicted, [0.5, 0.25, 0.125, 0.0625], rtol=1e-9)


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ({"path_sums": {4: 1, 8: 1}}, "path_sums has no value at 2"),
        ({"calibrated": {"own": {2: None, 4: 1.0}}}, "own has no value at 2"),
        ({"calibrated": {"own": {2: 0.1, 4: 0.0}}}, "own at 4 must be positive and finite, got 0"),
    ],
)
def test_errors(predictions, message):
    with pytest.raises(ValueError, match=message):
        fit.learning_rate_rules(transfer(planted(-1)), **predictions)


@pytest.mark.parametrize(
    ("optima", "expected"),
    [
        ([-4.0, -4.0, -4.0], 0),
        ([-6.0, -5.0, -4.2, -4.0], 2),
        ([-4.0, -5.0, -4.0, -3.9], 2),  # it leaves the band again
        ([-4.0, 3.0, -4.0], 2),  # no optimum in between
        ([-4.0, -3.8, -3.6, -3.5], 2),  # of the last one, not of the one before
        ([-4.0, -5.0], 1),
        ([-4.0, 3.0], None),
    ],
)
def test_settled(optima, expected):
    assert fit.settled(LRS, np.stack([curve(best) for best in optima]), CAP) == expected


def test_settled_above_chance_is_not_settled():
    losses = np.stack([CAP * math.exp(2) * curve(-4.0), curve(-4.0)])
    assert [fit.settled(LRS, losses, cap) for cap in (None, CAP)] == [0, 1]


def test_settled_within_another_band():
    losses = np.stack([curve(best) for best in (-6.0, -5.0, -4.2, -4.0)])
    assert [fit.settled(LRS, losses, CAP, band=band) for band in (0.1, 1.1, 3)] == [3, 1, 0]
    with pytest.raises(ValueError, match=r"\(times, points, seeds\)"):
        fit.settled(LRS, losses[0], CAP)

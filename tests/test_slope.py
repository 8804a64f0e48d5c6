"""The three answers of a coordinate check, from planted slopes."""

import math

import numpy as np
import pytest

from depthmup.measure.slope import SlopeEstimate, answer, estimate, fits, overall, reachable, stages

DEPTHS = (4, 8, 16, 32, 64)
L = np.array(DEPTHS)


def planted(log2_changes, noise=0.1, seeds=16, seed=0):
    """Changes with noise in octaves, (sizes, seeds)."""
    rng = np.random.default_rng(seed)
    return 2.0 ** (np.asarray(log2_changes)[:, None] + noise * rng.normal(size=(len(log2_changes), seeds)))


def answer_of(axis, sizes, log2_changes, looks=1, tests=28, **options):
    return answer(fits(axis, sizes, planted(log2_changes, **options)), 0.1, looks, tests)


@pytest.mark.parametrize(
    ("slope", "seeds", "expected"),
    [
        (0.0, 16, "ok"),
        (0.25, 16, "not ok"),
        (-0.25, 16, "not ok"),
        (0.25, 3, "undecided"),  # the interval reaches into the band
        (0.1, 16, "undecided"),
        (0.0, 1, "undecided"),  # one seed has no interval
        (1.0, 1, "undecided"),
    ],
)
def test_the_interval_decides_and_not_the_point(slope, seeds, expected):
    assert answer_of("width", (64, 128, 256), slope * np.log2((64, 128, 256)), seeds=seeds) == expected


def test_a_wide_interval_is_undecided():
    """+.14 [-.27, +.55]"""
    slopes = 0.14 + 0.258 * np.array([-1.0, 1, -1, 1]) * math.sqrt(3) / 2
    assert estimate(slopes).low < -0.1
    assert estimate(slopes).high > 0.1
    assert answer([slopes], 0.1) == "undecided"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (0 / L, "ok"),
        (1.6 / L, "ok"),  # nanoGPT
        (-7.7 / L, "ok"),  # a ViT without norm: the slope of the line is +.43
        (0.25 * np.log2(L), "not ok"),
        (0.5 * np.log2(L), "not ok"),
        (-0.5 * np.log2(L), "not ok"),
        (np.log2(L), "not ok"),
        (0.5 * np.log2(L) + 1.6 / L, "not ok"),
        (0.25 * np.log2(L) + 3.5 / L, "undecided"),  # flat at these depths, not at large depth
        (np.log2(1 + np.sqrt(L)), "not ok"),
    ],
)
def test_along_depth(change, expected):
    """What falls like 1/depth is ok; a slope that stays is not, whatever falls beside it."""
    assert answer_of("depth", DEPTHS, change, seeds=32) == expected


def test_a_real_slope_is_never_explained_away():
    """By the noisiest measurement over the fewest depths."""
    for depths in ((4, 8, 16), (8, 12, 16, 32)):
        for sign in (-1, 1):
            change = sign * 0.5 * np.log2(depths)
            answers = [answer_of("depth", depths, change, noise=0.25, seeds=64, seed=seed) for seed in range(50)]
            assert "ok" not in answers


def test_a_transient_at_few_small_depths_is_undecided():
    """nanoGPT at depths 2, 4, 8: the line's slope is -.3, which three depths cannot tell from 1.6 / L."""
    depths = (2, 4, 8)
    assert answer_of("depth", depths, 1.6 / np.array(depths)) == "undecided"
    assert answer_of("width", depths, 1.6 / np.array(depths)) == "not ok"  # along width there is no such term
    assert answer_of("depth", (2, 8), [0.8, 0.2]) == "not ok"  # and two depths do not allow it


def test_fits_are_least_squares():
    changes = planted(1.6 / L + 0.2 * np.log2(L), noise=0.3, seeds=3)
    line, term = fits("depth", DEPTHS, changes)
    design = np.stack([np.ones(len(L)), np.log2(L), 1 / L]).T
    np.testing.assert_allclose(line, np.linalg.lstsq(design[:, :2], np.log2(changes), rcond=None)[0][1])
    np.testing.assert_allclose(term, np.linalg.lstsq(design, np.log2(changes), rcond=None)[0][1])
    assert len(fits("width", DEPTHS, changes)) == len(fits("depth", (4, 8), changes[:2])) == 1
    assert len(fits("depth", (4, 8, 8), changes[:3])) == 1  # two depths


def test_intervals_are_students_and_bonferronis():
    """For 3 degrees of freedom t is 3.1824, and 7.4533 for 2 looks at 5 slopes: 2.5 per mille on a side."""
    slopes = np.array([0.1, 0.2, 0.3, 0.4])
    stderr = slopes.std(ddof=1) / 2
    np.testing.assert_allclose(estimate(slopes), [0.25, 0.25 - 3.1824 * stderr, 0.25 + 3.1824 * stderr], rtol=1e-4)
    assert estimate(slopes, looks=2, tests=5).high == pytest.approx(0.25 + 7.4533 * stderr, rel=1e-4)
    assert estimate(slopes[:1]) == SlopeEstimate(0.1, -math.inf, math.inf)


def test_only_not_ok_is_corrected_for_the_number_of_slopes():
    slopes = 0.2 + 0.05 * np.array([-1.0, 1, -1, 1])
    assert [answer([slopes], 0.1, tests=tests) for tests in (1, 28)] == ["not ok", "undecided"]
    flat = slopes - 0.2
    assert [answer([flat], 0.1, tests=tests) for tests in (1, 28)] == ["ok", "ok"]
    assert answer([flat], 0.1, looks=4) == "undecided"


def test_errors_of_reports():
    """Of 28 slopes at the band's edge one is called not ok in at most 5% of reports, uncorrected in far more."""
    rng = np.random.default_rng(0)
    slopes = 0.1 + 0.1 * rng.normal(size=(300, 28, 8))
    wrong = {
        t: np.mean([overall([answer([s], 0.1, 1, t) for s in report]) == "not ok" for report in slopes])
        for t in (1, 28)
    }
    assert wrong[28] < 0.05
    assert wrong[1] > 0.4


@pytest.mark.parametrize("change", [0.0, math.inf, math.nan])
def test_what_does_not_move_or_blows_up_is_not_ok(change):
    changes = planted(0 / L)
    changes[2, 1] = change
    assert answer(fits("depth", DEPTHS, changes), 0.1) == "not ok"


def test_overall():
    assert overall(["ok", "", "ok"]) == "ok"
    assert overall(["ok", "undecided", "ok"]) == "undecided"
    assert overall(["undecided", "not ok", "ok"]) == "not ok"


def test_stages():
    assert stages(8, 64) == [8, 16, 32, 64]
    assert stages(8, 40) == [8, 16, 32, 40]
    assert stages(16, 16) == stages(16, 8) == stages(16, 31) == [16]


WRITTEN = {"tolerance": 0.1, "looks": 4, "tests": 40, "seeds": 32}


def test_what_more_seeds_may_answer():
    """Of four seeds: near 0 and noisy all is open; far inside of the band and calm it is ok, and far beyond not."""
    pattern = np.array([-1.0, 1, -1, 1])
    assert reachable([0.05 + 0.2 * pattern], **WRITTEN) == {"ok", "undecided", "not ok"}
    assert reachable([0.1 + 0.001 * pattern], **WRITTEN) >= {"undecided"}
    assert "not ok" not in reachable([0.02 * pattern], **WRITTEN)
    assert "ok" not in reachable([0.3 + 0.02 * pattern], **WRITTEN)
    assert reachable([2.0 * pattern, 40 * pattern], **WRITTEN | {"seeds": 8}) == {"undecided"}  # too noisy
    assert reachable([np.zeros(1)], **WRITTEN) == {"ok", "undecided", "not ok"}


def test_giving_up_makes_no_answer_likelier():
    """Trained up to 32 seeds or given up: an answer is the same, or undecided, which it seldom would not have been."""
    rng = np.random.default_rng(0)
    counts = stages(4, 32)
    lost, spared, total = 0, 0, 0
    for slope in (0.0, 0.05, 0.09, 0.11, 0.15, 0.3):
        for noise in (0.05, 0.2):
            for _ in range(60):
                slopes = slope + noise * rng.normal(size=32)
                answers = [answer([slopes[:n]], 0.1, len(counts), 40) for n in counts]
                whole = next((i for i, one in enumerate(answers) if one != "undecided"), len(counts) - 1)
                given_up = next(
                    (
                        i
                        for i, n in enumerate(counts[:-1])
                        if answers[i] == "undecided"
                        and reachable([slopes[:n]], 0.1, len(counts), 40, 32) == {"undecided"}
                    ),
                    whole,
                )
                early = answers[min(given_up, whole)]
                assert early in (answers[whole], "undecided")
                lost += early != answers[whole]
                spared += counts[whole] - counts[min(given_up, whole)]
                total += 1
    assert lost / total < 0.02
    assert spared / total > 1

"""Which rule of a coordinate check calls right models ok, and never a wrong one?

    python -m experiments.check_answers

Both tables are made of planted changes with Gaussian noise of .15 octaves, independent for each size and seed. Seeds
are added from 8 up to 64 while a slope is undecided, and "not ok" is corrected for 28 slopes.

The first table has 400 slopes along depth L for each line. A column is a rule: it judges the slope of the line, the
slope beside a term c/L, or both, as `coordinate_check` does. A cell has the percentages of ok, undecided and not ok.

The second table has 400 reports of 28 slopes along width for each line, and the percentage of each verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from depthmup.measure.slope import UNDECIDED, answer, fits, overall, stages
from depthmup.settings import CHECK_DEFAULTS

REPEATS = 400
STAGES = stages(CHECK_DEFAULTS["seeds"], CHECK_DEFAULTS["max_seeds"])
TOLERANCE, SLOPES = CHECK_DEFAULTS["tolerance"], 28
DEPTHS = ((4, 8, 16, 32, 64), (4, 8, 16, 32), (2, 4, 8))
WIDTHS = (64, 128, 256)
NOISE = 0.15  # octaves; docs/checks.md has .1 to .25
# name: log2 change at depth L. The first are right: their slope vanishes at large depth.
RIGHT: dict[str, Callable[[float], float]] = {
    "0": lambda L: 0.0,
    "1.6 / L (nanoGPT)": lambda L: 1.6 / L,
    "-7.7 / L (ViT, no norm)": lambda L: -7.7 / L,
    "L log2(1 + 4.5/L)": lambda L: L * math.log2(1 + 4.5 / L),
}
WRONG: dict[str, Callable[[float], float]] = {
    ".25 log2 L": lambda L: 0.25 * math.log2(L),
    ".5 log2 L": lambda L: 0.5 * math.log2(L),
    "log2 L": math.log2,
    ".5 log2 L + 1.6 / L": lambda L: 0.5 * math.log2(L) + 1.6 / L,
}
# name: which of the two slopes are judged
RULES = {"line": slice(1), "term": slice(1, 2), "both": slice(2)}


def tried(rule: slice, depths: Sequence[int], log2_changes: np.ndarray) -> str:
    """The answer of a rule to planted changes, (depths, seeds), of which it takes no more than it needs."""
    for seeds in STAGES:
        fitted = fits("depth", depths, 2.0 ** log2_changes[:, :seeds])
        result = answer(fitted[rule], TOLERANCE, len(STAGES), SLOPES)
        if result != UNDECIDED:
            break
    return result


def slopes() -> None:
    print(f"{'ok / undecided / not ok, percent':44}" + "".join(f"{name:>21}" for name in RULES))
    for depths in DEPTHS:
        for kind, models in (("right", RIGHT), ("wrong", WRONG)):
            for name, change in models.items():
                rng = np.random.default_rng(0)
                mean = np.array([[change(depth)] for depth in depths])
                planted = [mean + NOISE * rng.normal(size=(len(depths), STAGES[-1])) for _ in range(REPEATS)]
                cells = [shares([tried(rule, depths, y) for y in planted]) for rule in RULES.values()]
                line = f"{' '.join(map(str, depths)):13} {kind}  {name}"
                print(f"{line:44}" + "".join(f"{cell:>21}" for cell in cells), flush=True)


def reports() -> None:
    x = np.log2(WIDTHS)[:, None]
    print(f"{'ok / undecided / not ok, percent of reports':44}{'corrected':>21}{'not corrected':>21}")
    for name, planted in (
        ("28 slopes of 0", np.zeros(SLOPES)),
        ("28 slopes of .1", np.full(SLOPES, 0.1)),
        ("27 slopes of 0, one of .101", np.eye(SLOPES)[0] * 0.101),
        ("27 slopes of 0, one of .5", np.eye(SLOPES)[0] * 0.5),
    ):
        rng = np.random.default_rng(0)
        noise = NOISE * rng.normal(size=(REPEATS, SLOPES, len(WIDTHS), STAGES[-1]))
        changes = 2.0 ** (planted[:, None, None] * x + noise)
        cells = [
            shares([report(change, looks, tests) for change in changes])
            for looks, tests in ((len(STAGES), SLOPES), (1, 1))
        ]
        print(f"{name:44}" + "".join(f"{cell:>21}" for cell in cells), flush=True)


def report(changes: np.ndarray, looks: int, tests: int) -> str:
    """The verdict on planted changes, (slopes, widths, seeds), of which it takes no more seeds than it needs."""
    for seeds in STAGES:
        slopes = [fits("width", WIDTHS, change[:, :seeds]) for change in changes]
        verdict = overall([answer(measured, TOLERANCE, looks, tests) for measured in slopes])
        if verdict != UNDECIDED:
            break
    return verdict


def shares(answers: Sequence[str]) -> str:
    count = Counter(answers)
    return " / ".join(f"{100 * count[a] / len(answers):.0f}" for a in ("ok", "undecided", "not ok"))


if __name__ == "__main__":
    slopes()
    reports()

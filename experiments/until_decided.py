"""How many trials does a sweep take until its verdict is decided (sweep.until), against a fixed number of seeds?

    OPENBLAS_NUM_THREADS=1 python -m experiments.until_decided [redraws]      200 redraws: 15 minutes on one core

Nothing is trained: the sweeps are those of experiments.planted_verdicts, planted with 24 seeds on grids of an eighth of
an octave. The first way begins with 3 seeds on a grid of half an octave and goes on by the rule of trials/until.py; the
others see the first 6, 12 or 24 seeds of that grid, once. docs/sweeps.md has the mean number of trials, the
percentage of redraws with either verdict, and that of redraws with the other one than the truth.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np

from depthmup import fit
from depthmup.measure.slope import stages
from depthmup.trials.adaptive import PARTS, Lattice
from depthmup.trials.until import Seeds, needed
from depthmup.trials.verdicts import GRID_LOOKS
from experiments.planted_verdicts import DEPTHS, KINDS, Kind, plant, truth

REDRAWS = 200
NAMES = ("sharp", "flat", "cliff", "moving cliff")
DRIFTS = (0.0, 0.2, 0.25, 0.3, 0.5)
STAGES = stages(3, 24)
LOOKS = len(STAGES) + GRID_LOOKS
FIXED = (6, 12, 24)  # numbers of seeds


class Planted:
    """A planted sweep."""

    def __init__(self, rng: np.random.Generator, kind: Kind) -> None:
        rows = plant(rng, kind._replace(step=kind.step / PARTS), "wide", STAGES[-1])
        rates = sorted({row["learning_rate"] for row in rows})[int(rng.integers(PARTS)) :]
        self.lattice = Lattice(tuple(rates[::PARTS]), math.log2(rates[0]), round(1 / kind.step))
        self._rows = {self._key(row["depth"], row["learning_rate"], row["seed"]): row for row in rows}

    def _key(self, depth: float, rate: float, seed: float) -> tuple[float, ...]:
        return depth, self.lattice.number(rate), seed

    def rows(self, seeds: Seeds) -> Iterator[dict[str, float]]:
        """The rows of so many seeds at each depth and rate, without rates beyond those that were planted."""
        for depth, of_depth in seeds.items():
            for rate, count in of_depth.items():
                keys = (self._key(depth, rate, seed) for seed in range(count))
                yield from (self._rows[key] for key in keys if key in self._rows)

    def grid(self, seeds: int) -> Seeds:
        return {depth: dict.fromkeys(self.lattice.rates, seeds) for depth in DEPTHS}


def until_decided(planted: Planted) -> tuple[str, int]:
    """(verdict, number of trials) of a sweep that goes on until it is decided."""
    seeds: dict[float, dict[float, int]] = {depth: dict(row) for depth, row in planted.grid(STAGES[0]).items()}
    for _ in range(LOOKS):
        rows = list(planted.rows(seeds))
        result = fit.transfer(rows, looks=LOOKS)
        more = needed(result, seeds, STAGES, planted.lattice) if result.verdict == "undecided" else {}
        if not more:
            break
        for (depth, rate), count in more.items():
            seeds[depth][rate] = count
    return result.verdict, len(rows)


def fixed(planted: Planted, seeds: int) -> tuple[str, int]:
    rows = list(planted.rows(planted.grid(seeds)))
    return fit.transfer(rows).verdict, len(rows)


def cell(outcomes: list[tuple[str, int]], right: str) -> str:
    decided = [verdict for verdict, _ in outcomes if verdict != "undecided"]
    share = 100 * len(decided) / len(outcomes)
    wrong = f"{100 * sum(verdict != right for verdict in decided) / len(outcomes):.1f}%" if right else "-"
    return f"{np.mean([trials for _, trials in outcomes]):,.0f}, {share:.0f}%, {wrong}"


def main(redraws: int) -> None:
    ways = ["until decided", *(f"{seeds} seeds" for seeds in FIXED)]
    print("| bowl | drift | truth | " + " | ".join(ways) + " |")
    print("|---" * (3 + len(ways)) + "|", flush=True)
    for kind in (kind for name in NAMES for kind in KINDS if kind.name == name):
        for drift in DRIFTS:
            planted = kind._replace(drift=drift * (len(DEPTHS) - 1))
            rng, right = np.random.default_rng(0), truth(planted)
            sweeps = (Planted(rng, planted) for _ in range(redraws))
            outcomes = [[until_decided(sweep), *(fixed(sweep, seeds) for seeds in FIXED)] for sweep in sweeps]
            columns = [cell(list(of_way), right) for of_way in zip(*outcomes, strict=True)]
            print(f"| {kind.name} | {drift:g} | {right or 'none'} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else REDRAWS)

"""How often do the 95% intervals of exponents, bands and drifts hold the truth?

    python -m experiments.interval_coverage

The table has 2,000 made-up sweeps for each line: parabolas of log loss over log2 learning rate with noise between
seeds, at seven depths (five where it says so) and 19 rates. "cliff": trials diverge above the optimum; the two numbers
are the octaves from the optimum to the cliff and their scatter between seeds. "scatter": octaves by which the optima
themselves scatter about the law. The band is compared with the law where an estimate beside the cliff is on average (it
is biased there; experiments/planted_curves.py has the biases, and the coverage of the intervals of optima).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from depthmup import fit

SWEEPS = 2000
SHIFTS = 400  # curves from which the bias beside a cliff is taken
DEPTHS = np.array([3, 4, 6, 8, 12, 16, 24])
RATES = 2.0 ** np.arange(-8, 1.01, 0.5)
LAW = -3.0  # log2 of the optimum at depth 3
SCREEN_DEPTHS = np.array([2, 4, 8, 16, 24])  # with two seeds: the screens of experiments/paper_b


class Case(NamedTuple):
    exponent: float = 0.0
    seeds: int = 6
    scatter: float = 0.0  # octaves of the optima about the law
    cliff: tuple[float, float] = (9.0, 0.0)  # octaves above the optimum, and their scatter between seeds
    depths: np.ndarray = DEPTHS


CASES = {
    "exponent -1.5, 6 seeds": Case(exponent=-1.5),
    "exponent 0, 6 seeds": Case(),
    "exponent 0, 6 seeds, cliff at 1.5 +- .2": Case(cliff=(1.5, 0.2)),
    "exponent 0, 6 seeds, cliff at .5 +- .5": Case(cliff=(0.5, 0.5)),
    "exponent 0, 3 seeds": Case(seeds=3),
    "exponent 0, 3 seeds, cliff at .5 +- .5": Case(seeds=3, cliff=(0.5, 0.5)),
    "exponent 0, 6 seeds, scatter .1": Case(scatter=0.1),
    "exponent 0, 6 seeds, scatter .3": Case(scatter=0.3),
    "exponent 0, 2 seeds, 5 depths": Case(seeds=2, depths=SCREEN_DEPTHS),
    "exponent 0, 2 seeds, 5 depths, scatter .3": Case(seeds=2, scatter=0.3, depths=SCREEN_DEPTHS),
    "exponent 0, 2 seeds, 5 depths, cliff at .5 +- .5": Case(seeds=2, cliff=(0.5, 0.5), depths=SCREEN_DEPTHS),
}


def curve(rng: np.random.Generator, centre: float, seeds: int, cliff: tuple[float, float]) -> np.ndarray:
    """Losses of one made-up curve, (rates, seeds)."""
    x = np.log2(RATES)[:, None] - centre
    losses = np.exp(0.2 * x**2 - 2 + 0.05 * rng.normal(size=(len(RATES), seeds)))
    return np.where(x > cliff[0] + cliff[1] * rng.normal(size=seeds), np.nan, losses)


def planted(rng: np.random.Generator, case: Case, shift: float) -> dict[str, bool]:
    """{name of an interval: whether it holds the truth} for one made-up sweep."""
    rows, optima, hold = [], [], dict[str, bool]()
    for depth in case.depths.tolist():
        centre = LAW + case.exponent * math.log2(depth / case.depths[0]) + case.scatter * rng.normal()
        losses = curve(rng, centre, case.seeds, case.cliff)
        optima.append(fit.optimum(RATES, losses, math.log(10)))
        rows += [
            {"depth": depth, "learning_rate": rate, "seed": seed, "loss": losses[i, seed]}
            for i, rate in enumerate(RATES.tolist())
            for seed in range(case.seeds)
        ]
    lrs, stderr = [o.learning_rate for o in optima], [o.stderr for o in optima]
    truth = 2 ** (LAW + shift + case.exponent * math.log2(10 / case.depths[0]))
    for name, errors in (("weighted", stderr), ("ordinary", None)):
        law = fit.power_law(case.depths, lrs, errors)
        low, high = law.band(10)
        hold[f"{name} exponent"] = law.low <= case.exponent <= law.high
        hold[f"{name} band"] = bool(low <= truth <= high)
    judged = fit.transfer(rows, cap=math.log(10))
    for name, drift in (("drift", judged.drift), ("edge's drift", judged.edge_drift)):
        if drift is not None:
            hold[name] = drift.low <= case.exponent <= drift.high
    return hold


def main() -> None:
    names = ["weighted exponent", "weighted band", "ordinary exponent", "ordinary band", "drift", "edge's drift"]
    print(f"{'percent that hold the truth':46}" + "".join(f"{name:>19}" for name in names))
    for label, case in CASES.items():
        rng = np.random.default_rng(0)
        optima = [fit.optimum(RATES, curve(rng, LAW, case.seeds, case.cliff), math.log(10)) for _ in range(SHIFTS)]
        shift = float(np.mean([math.log2(o.learning_rate) for o in optima if o.learning_rate])) - LAW
        results = [planted(rng, case, shift) for _ in range(SWEEPS)]
        shares = [[result[name] for result in results if name in result] for name in names]
        cells = [f"{100 * np.mean(share):.1f}" if share else "" for share in shares]
        print(f"{label:46}" + "".join(f"{cell:>19}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()

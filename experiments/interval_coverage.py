"""How often do the 95% intervals of optima, exponents, bands and drifts hold the truth?

    python -m experiments.interval_coverage

2,000 planted sweeps for each line: parabolas of log loss over log2 learning rate, noise between seeds, seven depths, 19
rates; "cliff": above the optimum trials diverge, at a place that moves between seeds by so many octaves; "scatter": the
optima themselves lie about the law by so many octaves. The truth of an optimum is what 4,000 seeds say.
"""

from __future__ import annotations

import math

import numpy as np

from depthmup import fit

SWEEPS = 2000
DEPTHS = np.array([3, 4, 6, 8, 12, 16, 24])
RATES = 2.0 ** np.arange(-8, 1.01, 0.5)
LAW = -3.0  # log2 of the optimum at depth 3
# name: (exponent, seeds, octaves of the optimum's scatter, (distance of the cliff, its scatter))
CASES = {
    "exponent -1.5, 6 seeds": (-1.5, 6, 0.0, (9.0, 0.0)),
    "exponent 0, 6 seeds": (0.0, 6, 0.0, (9.0, 0.0)),
    "exponent 0, 6 seeds, cliff at 1.5 +- .2": (0.0, 6, 0.0, (1.5, 0.2)),
    "exponent 0, 6 seeds, cliff at .5 +- .5": (0.0, 6, 0.0, (0.5, 0.5)),
    "exponent 0, 3 seeds": (0.0, 3, 0.0, (9.0, 0.0)),
    "exponent 0, 3 seeds, cliff at .5 +- .5": (0.0, 3, 0.0, (0.5, 0.5)),
    "exponent 0, 6 seeds, scatter .1": (0.0, 6, 0.1, (9.0, 0.0)),
    "exponent 0, 6 seeds, scatter .3": (0.0, 6, 0.3, (9.0, 0.0)),
}


def curve(rng: np.random.Generator, centre: float, seeds: int, cliff: tuple[float, float]) -> np.ndarray:
    """(rates, seeds)."""
    x = np.log2(RATES)[:, None] - centre
    losses = np.exp(0.2 * x**2 - 2 + 0.05 * rng.normal(size=(len(RATES), seeds)))
    return np.where(x > cliff[0] + cliff[1] * rng.normal(size=seeds), np.nan, losses)


def planted(
    rng: np.random.Generator, exponent: float, seeds: int, scatter: float, cliff: tuple[float, float], shift: float
) -> dict[str, bool]:
    """Whether each interval of one sweep holds its truth."""
    rows, optima, hold = [], [], dict[str, bool]()
    for depth in DEPTHS.tolist():
        centre = LAW + exponent * math.log2(depth / DEPTHS[0]) + scatter * rng.normal()
        losses = curve(rng, centre, seeds, cliff)
        found = fit.optimum(RATES, losses, math.log(10))
        optima.append(found)
        hold[f"optimum at {depth}"] = bool(found.low <= 2 ** (centre + shift) <= found.high)
        rows += [
            {"depth": depth, "learning_rate": rate, "seed": seed, "loss": losses[i, seed]}
            for i, rate in enumerate(RATES.tolist())
            for seed in range(seeds)
        ]
    lrs, stderr = [o.learning_rate for o in optima], [o.stderr for o in optima]
    truth = 2 ** (LAW + shift + exponent * math.log2(10 / DEPTHS[0]))
    for name, errors in (("weighted", stderr), ("ordinary", None)):
        law = fit.power_law(DEPTHS, lrs, errors)
        low, high = law.band(10)
        hold[f"{name} exponent"] = law.low <= exponent <= law.high
        hold[f"{name} band"] = bool(low <= truth <= high)
    drift = fit.transfer(rows, cap=math.log(10)).drift
    assert drift is not None
    return hold | {"drift": drift.low <= exponent <= drift.high}


def main() -> None:
    names = ["weighted exponent", "weighted band", "ordinary exponent", "ordinary band", "drift"]
    print(f"{'percent that hold the truth':46}" + "".join(f"{name:>19}" for name in ("optimum", *names)))
    for label, case in CASES.items():
        rng = np.random.default_rng(0)
        many = fit.optimum(RATES, curve(rng, LAW, 4000, case[-1]), math.log(10)).learning_rate
        assert many is not None
        shift = math.log2(many) - LAW  # by a cliff, which has the same place at all depths where there is one
        results = [planted(rng, *case, shift) for _ in range(SWEEPS)]
        optimum = np.mean([hold for result in results for name, hold in result.items() if name.startswith("optimum")])
        shares = [optimum, *(np.mean([result[name] for result in results]) for name in names)]
        print(f"{label:46}" + "".join(f"{100 * share:19.1f}" for share in shares), flush=True)


if __name__ == "__main__":
    main()

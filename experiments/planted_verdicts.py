"""How often is the verdict of `fit.transfer` wrong, how often does it decide, and do its costs cover the planted ones?

    python -m experiments.planted_verdicts [redraws] [file.json]      200 redraws: an hour of one core

docs/results/planted_verdicts.json has its numbers. docs/laws.md has the table that `summary` makes of these and of
those of experiments/planted_curves.py.

Sweeps over five depths, 2 to 32, are planted as real ones are made: 5 to 9 learning rates half an octave apart at each
depth. On a "fixed" grid these are nine, the same at every depth, whose place differs from redraw to redraw; on an
"adaptive" one the seven around the best of one seed. The minimum moves down by a drift, in octaves from depth 2 to 32,
unless a kind says otherwise. Noise is that of single trainings; a seed's own level scatters besides, and the same seeds
are trained at every depth. `KINDS` has the bowls, what disturbs them, and why.

The truth is computed from the planted curves with the same margin, for the value that is best at depth 2: it
"transfers" if its cost is at most `CLOSE` of the margin at every depth, and does not if it is at least 1 / CLOSE at
one; between these there is no truth. The columns: wrong (the share of redraws with the other verdict than the truth),
decided (with either), covered (of the 95% intervals of costs, the share that hold the planted cost), bias (the median
of log2(tuned / planted), octaves).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from depthmup import fit
from depthmup.fit.thresholds import NEGLIGIBLE
from experiments.output import markdown
from experiments.planted_curves import PLACES, SHARP, Shape, command, corner

REDRAWS = 200
DEPTHS = (2, 4, 8, 16, 32)
SEEDS = (3, 8)
CLOSE = 0.75
LEVEL = 0.7  # log loss at the optimum
OF_SEED = 1.5  # scatter of a seed's own level, of the noise
POINTS = {"fixed": 9, "adaptive": 7}
Grid = Literal["fixed", "adaptive", "wide"]
BOTH: tuple[Grid, ...] = ("fixed", "adaptive")
# (rng, kind, index of the depth, log2 rates, planted log losses (rates, seeds)) -> the losses of trainings, NaN if not
# trained, infinite if diverged
Trouble = Callable[[np.random.Generator, "Kind", int, np.ndarray, np.ndarray], np.ndarray]


def plain(rng: np.random.Generator, kind: Kind, i: int, x: np.ndarray, log: np.ndarray) -> np.ndarray:
    return log + kind.scatter(i) * rng.normal(size=log.shape)


def heavy(freedom: float) -> Trouble:
    """Student's t, of the same variance where it has one."""
    unit = math.sqrt((freedom - 2) / freedom) if freedom > 2 else 0.5
    return lambda rng, kind, i, x, log: log + kind.scatter(i) * unit * rng.standard_t(freedom, size=log.shape)


def spikes(rng: np.random.Generator, kind: Kind, i: int, x: np.ndarray, log: np.ndarray) -> np.ndarray:
    """One training in twenty ends higher, by 5% in the mean."""
    return plain(rng, kind, i, x, log) + (rng.random(log.shape) < 0.05) * rng.exponential(0.05, size=log.shape)


def smooth(rng: np.random.Generator, kind: Kind, i: int, x: np.ndarray, log: np.ndarray) -> np.ndarray:
    """Errors of neighbouring learning rates are alike: a smooth function for every seed and size."""
    alike = np.exp(-0.5 * ((x[:, None] - x) / 1.5) ** 2) + 1e-9 * np.eye(len(x))
    off = np.linalg.cholesky(alike) @ rng.normal(size=log.shape)
    return log + kind.scatter(i) * (off + 0.3 * rng.normal(size=log.shape))


def tilted(rng: np.random.Generator, kind: Kind, i: int, x: np.ndarray, log: np.ndarray) -> np.ndarray:
    """Each seed has an optimum of its own, half an octave around that of all."""
    level = log - kind.loss(x - kind.centre(i), i)[:, None]
    shifted = kind.loss(x[:, None] - kind.centre(i) - 0.5 * rng.normal(size=log.shape[1]), i)
    return plain(rng, kind, i, x, level + shifted)


def missing(rng: np.random.Generator, kind: Kind, i: int, x: np.ndarray, log: np.ndarray) -> np.ndarray:
    """A quarter of the trainings were not made."""
    kept = rng.random(log.shape) > 0.25
    kept[~kept.any(axis=1), 0] = True
    return np.where(kept, plain(rng, kind, i, x, log), np.nan)


def diverging(rng: np.random.Generator, kind: Kind, i: int, x: np.ndarray, log: np.ndarray) -> np.ndarray:
    """Three trainings in a hundred diverge by chance."""
    return np.where(rng.random(log.shape) < 0.03, np.inf, plain(rng, kind, i, x, log))


class Kind(NamedTuple):
    """A kind of sweep. shape: planted log loss at u octaves from the minimum, or of (u, index of the depth) if
    `by_depth`. noise: of a training. drifts: of the minimum from depth 2 to 32, down. moves: how much of it at each
    depth. cliff: all trainings diverge so many octaves above the minimum; moving: scatter of that place between seeds.
    grows: factor of the noise at depth 32. start: of a fixed grid, octaves from the minimum of depth 2."""

    name: str
    shape: Callable[..., np.ndarray]
    noise: float = 0.01
    drifts: tuple[float, ...] = (0.0, 2.0)
    grids: tuple[Grid, ...] = BOTH
    trouble: Trouble = plain
    moves: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    cliff: float = math.inf
    moving: float = 0.0
    grows: float = 1.0
    step: float = 0.5
    start: float = -3.0
    by_depth: bool = False
    drift: float = 0.0

    def centre(self, i: int) -> float:
        return -self.drift * self.moves[i]

    def scatter(self, i: int) -> float:
        return float(self.noise * self.grows ** (i / (len(DEPTHS) - 1)))

    def loss(self, u: np.ndarray, i: int) -> np.ndarray:
        return np.asarray(self.shape(u, i) if self.by_depth else self.shape(u))


def parabola(curvature: float) -> Shape:
    return lambda u: curvature * np.square(u)


def steeper(factor: float) -> Shape:
    """So many times as steep above the minimum as below."""
    return lambda u: 0.02 * np.where(u > 0, factor, 1.0) * np.square(u)


def morse(skew: float) -> Shape:
    return lambda u: 0.03 * np.square(np.expm1(skew * np.minimum(u, 6)) / skew)


def floor(u: np.ndarray, i: int) -> np.ndarray:
    """A loss that cannot fall below a floor: log losses flatten with the depth."""
    excess = 0.5**i
    return np.log1p(excess * np.exp(0.06 * np.minimum(np.square(u), 60))) - math.log1p(excess)


def basins(u: np.ndarray, i: int) -> np.ndarray:
    """Two valleys, at 0 and -2.5: the first is 1% lower at depth 2, the second at depth 32."""
    gap = 0.01 * (1 - i / 2)
    return np.minimum(0.03 * np.square(u) + max(0.0, -gap), 0.03 * np.square(u + 2.5) + max(0.0, gap))


PARABOLA = parabola(0.03)  # as of language models
UP = tuple(-share for share in (0.0, 0.25, 0.5, 0.75, 1.0))
KINDS = (
    Kind("parabola", PARABOLA, drifts=(0.0, 0.85, 1.2, 2.0)),
    Kind("parabola, up", PARABOLA, moves=UP, start=-1.5),
    Kind("sharp", parabola(0.2), 0.08),
    Kind("sharp, octaves", parabola(0.2), 0.08, grids=("fixed",), step=1.0, start=-5.5),
    Kind("flat", parabola(0.015), 0.008),
    Kind("steeper above, 1.25", steeper(1.25), drifts=(0.5, 1.4)),
    Kind("steeper above, 1.6", steeper(1.6), drifts=(0.5, 1.2)),
    Kind("steeper above, 2", steeper(2), drifts=(0.5, 0.85)),
    Kind("steeper above, 3", steeper(3), drifts=(0.0, 0.75, 0.85)),
    Kind("steeper above, 5", steeper(5), drifts=(0.0, 0.7, 0.85)),
    Kind("steeper above, 3, up", steeper(3), drifts=(0.75, 1.5), moves=UP, start=-1.5),
    Kind("steeper below, 3", steeper(1 / 3), drifts=(0.75, 2.5)),
    Kind("smoothly skew", morse(0.25), drifts=(0.5, 1.2)),
    Kind("smoothly more skew", morse(0.5), drifts=(0.5, 0.85)),
    Kind("one-sided", corner(0.7, 0.35, 0.4), 0.15),
    Kind("cliff", parabola(0.1), 0.05, cliff=0.75),
    Kind("moving cliff", parabola(0.1), 0.05, cliff=0.75, moving=0.2),
    Kind("cliff near", PARABOLA, cliff=0.25, drifts=(0.15, 1.2)),
    Kind("cliff near, up", PARABOLA, cliff=0.25, drifts=(0.5, 1.25, 2.0), moves=UP, start=-1.5),
    Kind("heavy tails, t2", PARABOLA, trouble=heavy(2)),
    Kind("heavy tails, t3", PARABOLA, trouble=heavy(3)),
    Kind("spikes", PARABOLA, trouble=spikes),
    Kind("smooth noise", PARABOLA, trouble=smooth),
    Kind("seeds with optima of their own", PARABOLA, trouble=tilted),
    Kind("noise grows", PARABOLA, grows=4.0),
    Kind("noise falls", PARABOLA, 0.012, grows=0.25),
    Kind("a quarter missing", PARABOLA, trouble=missing),
    Kind("diverging by chance", PARABOLA, trouble=diverging),
    Kind("drift at the largest", PARABOLA, moves=(0.0, 0.0, 0.0, 0.0, 1.0), drifts=(0.85, 1.2)),
    Kind("one size is off", PARABOLA, moves=(0.0, 0.0, 1.0, 0.0, 0.0), drifts=(0.85, 1.2)),
    Kind("loss floor", floor, 0.005, drifts=(0.0, 3.0), by_depth=True, start=-4.0),
    Kind("grid ends at the optimum", PARABOLA, grids=("fixed",), drifts=(1.25, 2.0), start=-2.0),
    Kind("two valleys", basins, drifts=(0.0,), by_depth=True, start=-3.5),
    Kind("flat bottom", lambda u: 0.06 * np.square(np.maximum(np.abs(u) - 0.75, 0)), drifts=(0.0, 3.0)),
    Kind("flat everywhere", parabola(0.0), 0.02, drifts=(0.0,), grids=("fixed",)),
)  # fmt: skip
COLUMNS = ("bias", "+.2f", 1), ("coverage", ".1f", 100)
# row of the table: (curves of planted_curves, or how their names end; kinds)
ROWS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "symmetric": (
        ("symmetric", "symmetric, flatter", "shallow"),
        ("parabola", "parabola, up", "sharp", "sharp, octaves", "flat"),
    ),
    "skew": (("steep to the left", "steep to the right"), ("smoothly skew", "smoothly more skew")),
    "steeper above, up to 2": ((), ("steeper above, 1.25", "steeper above, 1.6", "steeper above, 2")),
    "3 and 5": ((), ("steeper above, 3", "steeper above, 3, up", "steeper above, 5")),
    "steeper below": ((), ("steeper below, 3",)),
    "one-sided": (("one-sided", "one-sided, steep to the right"), ("one-sided",)),
    "sharp corner": ((SHARP.name,), ()),
    "fixed cliff": ((", fixed cliff",), ("cliff", "cliff near", "cliff near, up")),
    "moving cliff": ((", moving cliff",), ("moving cliff",)),
    "soft cliff": ((", soft cliff",), ()),
    "finite cliff, 1/2 octave above": ((", finite cliff half an octave above",), ()),
    "finite cliff, 1 or 2 above": ((", finite cliff 1 or 2 octaves above",), ()),
    "other noise": (
        (),
        (
            "heavy tails, t2", "heavy tails, t3", "spikes", "smooth noise", "noise grows", "noise falls",
            "seeds with optima of their own", "a quarter missing",
        ),
    ),
    "3% diverge": ((), ("diverging by chance",)),
    "other drifts": ((), ("drift at the largest", "one size is off", "loss floor", "grid ends at the optimum")),
    "two valleys": ((), ("two valleys",)),
    "flat": ((), ("flat bottom", "flat everywhere")),
}  # fmt: skip


def planted(kind: Kind) -> tuple[float, list[float], list[float]]:
    """(the best log2 rate of depth 2; its cost at every depth, in log loss; what the margin allows there)."""
    off = np.linspace(-8, 8, 6401)
    off = off[off <= kind.cliff]
    costs, margins, best = [], [], 0.0
    for i in range(len(DEPTHS)):
        loss = kind.loss(off, i)
        least, place = float(loss.min()), float(off[loss <= loss.min() + 1e-12].mean())
        best = place if i == 0 else best
        at = best - kind.centre(i)
        costs.append(math.inf if at > kind.cliff else float(kind.loss(np.array(at), i)) - least)
        margins.append(max(NEGLIGIBLE, float(kind.loss(np.array(place - fit.MARGIN), i)) - least))
    return best, costs, margins


def truth(kind: Kind) -> str:
    """The verdict that is right; "" between the two."""
    _, costs, margins = planted(kind)
    share = max(cost / margin for cost, margin in zip(costs[1:], margins[1:], strict=True))
    return "transfers" if share <= CLOSE else "does not transfer" if share >= 1 / CLOSE else ""


def plant(rng: np.random.Generator, kind: Kind, grid: Grid, seeds: int) -> list[dict[str, float]]:
    """The rows of a made-up sweep. On a "wide" grid all rates of 16 octaves are trained."""
    place = kind.step * (rng.integers(PLACES) + 0.5) / PLACES
    levels, rows = OF_SEED * kind.noise * rng.normal(size=seeds), []
    for i, depth in enumerate(DEPTHS):
        scatter = kind.moving * rng.normal(size=seeds)
        if grid == "fixed":
            x = kind.start + place + kind.step * (np.arange(POINTS[grid]) - 0.5)
        elif grid == "wide":
            x = np.arange(-10, 6.01, kind.step) + place
        else:
            coarse = np.arange(-10, 6.01, kind.step) + place
            seen = kind.loss(coarse - kind.centre(i), i) + kind.scatter(i) * rng.normal(size=len(coarse))
            best = int(np.argmin(np.where(coarse - kind.centre(i) > kind.cliff, np.inf, seen)))
            x = coarse[max(0, best - POINTS[grid] // 2) : best + POINTS[grid] // 2 + 1]
        log = kind.loss(x - kind.centre(i), i)[:, None] + levels
        log = np.where((x - kind.centre(i))[:, None] > kind.cliff + scatter, np.inf, log)
        log = np.where(np.isfinite(log), kind.trouble(rng, kind, i, x, np.where(np.isfinite(log), log, 0.0)), log)
        rows += [
            {"depth": depth, "learning_rate": 2.0**rate, "seed": seed, "loss": math.exp(LEVEL + log[j, seed])}
            for j, rate in enumerate(x.tolist())
            for seed in range(seeds)
            if not np.isnan(log[j, seed])
        ]
    return rows


def counted(kind: Kind, grid: Grid, seeds: int, redraws: int) -> dict[str, float]:
    """The columns, of a kind with its drift."""
    rng = np.random.default_rng(0)
    best, costs, _ = planted(kind)
    results = [fit.transfer(plant(rng, kind, grid, seeds)) for _ in range(redraws)]
    verdicts, right = [result.verdict for result in results], truth(kind)
    shares = {verdict: verdicts.count(verdict) / redraws for verdict in ("transfers", "does not transfer")}
    wrong = sum(share for verdict, share in shares.items() if verdict != right) if right else math.nan
    covered = [
        cost.low - 1e-9 <= math.expm1(true) <= cost.high + 1e-9
        for result in results
        for cost, true in zip(result.costs[1:], costs[1:], strict=False)
        if cost and not math.isnan(cost.low) and math.isfinite(true)
    ]
    bias = [math.log2(result.tuned) - best for result in results if result.tuned]
    return {
        **shares, "decided": sum(shares.values()), "wrong": wrong,
        "covered": float(np.mean(covered)) if covered else math.nan,
        "bias": float(np.median(bias)) if bias else math.nan,
    }  # fmt: skip


def rows(redraws: int) -> Iterator[dict[str, Any]]:
    for kind in KINDS:
        for drift in kind.drifts:
            for grid in kind.grids:
                for seeds in SEEDS:
                    one = kind._replace(drift=drift)
                    about = {"kind": kind.name, "drift": drift, "grid": grid, "seeds": seeds, "truth": truth(one)}
                    yield {**about, "redraws": redraws, **counted(one, grid, seeds, redraws)}


def summary(curves: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]) -> str:
    """The table of docs/laws.md: ranges over the curves of a row (grids of half an octave, 3 and 6 seeds), and over its
    kinds of sweeps the fewest verdicts that are decided with 3 and with 8 seeds, the most that are wrong, and the
    smallest coverage of costs."""
    lines = []
    for name, (of_curves, kinds) in ROWS.items():
        chosen = [row for row in curves if row["step"] == 0.5 and row["seeds"] > 1 and _ends(row["curve"], of_curves)]
        judged = [row for row in verdicts if row["kind"] in kinds]
        optima = [_range([row[key] for row in chosen], form, scale) if chosen else "" for key, form, scale in COLUMNS]
        tuned = _range([row["bias"] for row in judged], "+.2f", 1) if judged else ""
        decided = [[row["decided"] for row in judged if row["truth"] and row["seeds"] == seeds] for seeds in SEEDS]
        shares = [f"{100 * min(of_seeds):.0f}" if of_seeds else "" for of_seeds in decided]
        wrong = [row["wrong"] for row in judged if row["truth"]]
        covered = [row["covered"] for row in judged if not math.isnan(row["covered"])]
        ends = [
            f"{100 * end:.1f}" if end is not None else ""
            for end in (max(wrong, default=None), min(covered, default=None))
        ]
        lines.append([name, *optima, tuned, ", ".join(filter(None, shares)), *ends])
    head = ("curve", "bias", "coverage", "bias of the tuned value", "decided", "wrong", "coverage of costs")
    return markdown(head, lines)


def _ends(curve: str, names: Sequence[str]) -> bool:
    return any(curve == name or (name.startswith(", ") and curve.endswith(name)) for name in names)


def _range(values: Sequence[float], form: str, scale: float) -> str:
    low, high = (f"{scale * end:{form}}" for end in (min(values), max(values)))
    return low if low == high else f"{low}, {high}"


if __name__ == "__main__":
    command(rows, REDRAWS)

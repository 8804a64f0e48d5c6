"""How often is the verdict of `fit.transfer` wrong, and how often does it decide?

    python -m experiments.planted_verdicts [redraws] [file.json]      200 redraws: a quarter of an hour on one core

docs/results/planted_verdicts.json has its numbers. docs/laws.md has the table that `summary` makes of these and of
those of experiments/planted_curves.py.

Sweeps over five depths, 2 to 32, are planted: a bowl of log loss over log2 learning rate whose minimum moves by a drift
in octaves per doubling of depth, down unless it says up, on grids of half an octave whose place differs from redraw to
redraw. Noise is that of single trainings (between learning rates, for one seed); a seed's own level scatters by .1 on
top, and the same seeds are trained at every depth. The kinds of bowls:

- sharp, flat: parabolas as of residual MLPs and of language models; "noisier" has twice the noise at depth 32.
- skew: steeper to one side, where the local parabolas of a verdict are biased.
- one-sided: steep to the left, as with SGD.
- cliff: all trainings diverge .75 octaves above the optimum, or .2 octaves of scatter between seeds around that.
- soft cliff: losses rise by half there, and stay there.
- octaves: a grid of an octave.
- flat everywhere: no learning rate is better than another, so none costs anything.

The truth is computed from the planted curves with the same margin: a value "transfers" if what it costs at every depth
is below what `margin` octaves below the optimum cost there (or half a percent). Rows in which the two are equal within
a tenth of an octave have no truth: a total drift of the margin. The columns are percentages of redraws: wrong (the
other verdict than the truth), decided (either verdict).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from depthmup import fit
from depthmup.fit.contrast import LEAST
from experiments.output import markdown
from experiments.planted_curves import LEVEL, OF_SEED, PLACES, SHARP, Kind, Shape, bowl, command, corner

REDRAWS = 200
DEPTHS = (2, 4, 8, 16, 32)
SEEDS = (3, 6, 12, 24)
SHOWN = (3, 12)  # numbers of seeds in the table
DRIFTS = (0.0, 0.1, 0.25, 0.5, 1.0)
CLOSE = 0.1  # octaves of total drift within which a truth is none


def parabola(curvature: float) -> Shape:
    return lambda u: curvature * np.square(u)


KINDS = (
    Kind("sharp", parabola(0.2), 0.08),
    Kind("sharp, up", parabola(0.2), 0.08, up=True),
    Kind("sharp, octaves", parabola(0.2), 0.08, step=1.0),
    Kind("sharp, noisier", parabola(0.2), 0.08, grows=2.0),
    Kind("flat", parabola(0.015), 0.008),
    Kind("flat, up", parabola(0.015), 0.008, up=True),
    Kind("skew, steep to the left", bowl(0.1, -0.6), 0.08),
    Kind("skew, steep to the right", bowl(0.1, 0.6), 0.08),
    Kind("one-sided", corner(0.7, 0.35, 0.4), 0.15),
    Kind("cliff", parabola(0.1), 0.05, cliff=0.75),
    Kind("moving cliff", parabola(0.1), 0.05, cliff=0.75, moving=0.2),
    Kind("soft cliff", parabola(0.1), 0.05, cliff=0.75, jump=1.5, ramp=1e-9),  # at once
    Kind("flat everywhere", parabola(0.0), 0.02),
)
COLUMNS = ("bias", "+.2f", 1), ("coverage", ".1f", 100)
# row of the table: (curves of planted_curves, or how their names end; bowls)
ROWS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "symmetric": (
        ("symmetric", "symmetric, flatter", "shallow"),
        ("sharp", "sharp, up", "sharp, octaves", "sharp, noisier", "flat", "flat, up"),
    ),
    "skew": (("steep to the left", "steep to the right"), ("skew, steep to the left", "skew, steep to the right")),
    "one-sided": (("one-sided", "one-sided, steep to the right"), ("one-sided",)),
    "corner sharper than the grid": ((SHARP.name,), ()),
    "fixed cliff": ((", fixed cliff",), ("cliff",)),
    "moving cliff": ((", moving cliff",), ("moving cliff",)),
    "soft cliff": ((", soft cliff",), ()),
    "finite cliff, 1/2 octave above": ((", finite cliff half an octave above",), ()),
    "finite cliff, 3/4 octave above": ((), ("soft cliff",)),
    "finite cliff, 1 or 2 octaves above": ((", finite cliff 1 or 2 octaves above",), ()),
    "flat everywhere": ((), ("flat everywhere",)),
}


def truth(kind: Kind, drift: float) -> str:
    """The verdict that is right; "" where a tenth of an octave more or less of the total drift decides."""
    verdicts = set()
    for shift in (-CLOSE, CLOSE):
        off = -math.copysign(max(0.0, abs(drift) * (len(DEPTHS) - 1) + shift), drift)  # from the last depth's optimum
        cost = math.inf if kind.diverges and off > kind.cliff else float(kind.loss(np.array(off), np.array(math.inf)))
        unit = float(kind.shape(np.array(-fit.MARGIN)))
        verdicts.add("does not transfer" if cost > max(unit, LEAST) else "transfers")
    return verdicts.pop() if len(verdicts) == 1 else ""


def plant(rng: np.random.Generator, kind: Kind, drift: float, seeds: int) -> list[dict[str, float]]:
    """The rows of a made-up sweep. drift: octaves per doubling, as it is added."""
    x = np.arange(-10, 6.01, kind.step) + kind.step * (rng.integers(PLACES) + 0.5) / PLACES
    levels, rows = OF_SEED * rng.normal(size=seeds), []
    for i, depth in enumerate(DEPTHS):
        noise = kind.noise * kind.grows ** (i / (len(DEPTHS) - 1))
        u = (x - drift * i)[:, None]
        scatter = kind.moving * rng.normal(size=seeds)
        edges = kind.cliff + scatter if kind.diverges else np.full(seeds, np.inf)
        log = np.where(u > edges, np.inf, LEVEL + kind.loss(u, edges) + levels)
        loss = np.exp(log + noise * rng.normal(size=log.shape))
        rows += [
            {"depth": depth, "learning_rate": 2.0**rate, "seed": seed, "loss": loss[j, seed]}
            for j, rate in enumerate(x.tolist())
            for seed in range(seeds)
        ]
    return rows


def counted(kind: Kind, drift: float, seeds: int, redraws: int) -> dict[str, float]:
    """Shares of the redraws that transfer, that do not, and that are wrong."""
    rng = np.random.default_rng(0)
    step = drift if kind.up else -drift
    verdicts, right = [fit.transfer(plant(rng, kind, step, seeds)).verdict for _ in range(redraws)], truth(kind, step)
    shares = {verdict: verdicts.count(verdict) / redraws for verdict in ("transfers", "does not transfer")}
    wrong = sum(share for verdict, share in shares.items() if verdict != right) if right else math.nan
    return {**shares, "decided": sum(shares.values()), "wrong": wrong}


def rows(redraws: int) -> Iterator[dict[str, Any]]:
    for kind in KINDS:
        for drift in DRIFTS if kind.name != "flat everywhere" else (0.0,):
            for seeds in SEEDS:
                shares = counted(kind, drift, seeds, redraws)
                right = truth(kind, drift if kind.up else -drift)
                yield {"bowl": kind.name, "drift": drift, "truth": right, "seeds": seeds, **shares}


def summary(curves: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]) -> str:
    """The table of docs/laws.md: ranges over the curves of a row (grids of half an octave, 3 and 6 seeds), and over its
    bowls the fewest verdicts that are decided and the most that are wrong, of all drifts and numbers of seeds."""
    lines = []
    for name, (of_curves, bowls) in ROWS.items():
        chosen = [row for row in curves if row["step"] == 0.5 and row["seeds"] > 1 and _ends(row["curve"], of_curves)]
        judged = [row for row in verdicts if row["bowl"] in bowls]
        optima = [_range([row[key] for row in chosen], form, scale) if chosen else "" for key, form, scale in COLUMNS]
        wrong = [row["wrong"] for row in judged if row["truth"]]
        shares = [_decided(judged, drifts) for drifts in ((0.0,), (0.5, 1.0))]
        lines.append([name, *optima, *shares, f"{100 * max(wrong):.1f}" if wrong else ""])
    return markdown(("curve", "bias", "coverage", "decided: no drift", "2 octaves", "wrong"), lines)


def _ends(curve: str, names: Sequence[str]) -> bool:
    return any(curve == name or (name.startswith(", ") and curve.endswith(name)) for name in names)


def _range(values: Sequence[float], form: str, scale: float) -> str:
    low, high = (f"{scale * end:{form}}" for end in (min(values), max(values)))
    return low if low == high else f"{low}, {high}"


def _decided(judged: Sequence[Mapping[str, Any]], drifts: Sequence[float]) -> str:
    """The smallest percentages with SHOWN seeds."""
    of_seeds = [[row["decided"] for row in judged if row["drift"] in drifts and row["seeds"] == n] for n in SHOWN]
    return ", ".join(f"{100 * min(shares):.0f}" for shares in of_seeds if shares)


if __name__ == "__main__":
    command(rows, REDRAWS)

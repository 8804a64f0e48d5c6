"""The tables and pictures of docs/language.md, from committed rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from depthmup.files import write_atomically
from depthmup.report import figures
from depthmup.trials.verdicts import TransferCurve
from experiments.figures.figure import IMAGES, along, best_losses, cells, loss_pictures
from experiments.language.sweeps import SWEEP, published
from experiments.output import markdown, percent

COLUMNS = ("model", "along", "best learning rate: drift, verdict, cost", "best loss at each size")
# Parameterizations whose best losses over depth are compared, and the optimizer.
PAIRS = (("completep", "depth_mup", "adamw"), ("depth_ode", "depth_mup", "muon"))


def merged(curves: Sequence[TransferCurve]) -> list[TransferCurve]:
    """Curves of the same trainings (`mup` and `depth_mup` at the base depth) are one curve with all their names."""
    kept: dict[tuple[str, str, bytes], TransferCurve] = {}
    for c in curves:
        key = (c.optimizer, c.axis, c.trials["loss"].to_numpy().tobytes())
        name = f"{kept[key].name} = {c.name}" if key in kept else c.name
        kept[key] = dataclasses.replace(c, parameterization=name)
    return list(kept.values())


def tables() -> str:
    """What the rows say, as Markdown."""
    curves, rows, best = published().curves, [], {}
    for c in curves:
        best[c.name, c.optimizer, c.axis] = [best_losses(c.result, i) for i in range(len(c.result.values))]
    for c in merged(curves):
        drift, cost, verdict = cells(c)
        losses = best[c.name.split(" = ")[0], c.optimizer, c.axis]
        means = " ".join(f"{at_size.mean():.3f}" for at_size in losses)
        rows.append((f"{c.name}, {c.optimizer}", c.axis, ", ".join(filter(None, (drift, verdict, cost))), means))
    parts = [markdown(COLUMNS, rows), *(f"![{name}](images/language/{name}.png)" for name in along((), "gpt"))]
    for name, other, optimizer in PAIRS:
        losses, others = (best[parameterization, optimizer, "depth"] for parameterization in (name, other))
        changes = compared(losses, others, SWEEP["depths"])
        parts.append(f"Best loss of `{name}` against `{other}` with {optimizer} (paired seeds): {changes}.")
    return "\n\n".join(parts)


def draw() -> None:
    """Write the pictures."""
    for name, picture in loss_pictures(along(merged(published().curves), "gpt")).items():
        write_atomically(IMAGES / "language" / f"{name}.png", figures.png(picture))


def compared(best: list[np.ndarray], others: list[np.ndarray], depths: tuple[int, ...]) -> str:
    """How the best losses of two parameterizations, (seeds,) at each depth, differ above the base depth."""
    pairs = list(zip(best, others, depths, strict=True))[1:]
    return ", ".join(f"{percent(a / b).text('+.1f', '%')} at depth {depth}" for a, b, depth in pairs)

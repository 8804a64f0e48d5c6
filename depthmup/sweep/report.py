"""From rows to verdicts, pictures, summary.json and report.html."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any, NamedTuple

from depthmup.fit import Transfer, transfer
from depthmup.settings import Settings
from depthmup.sweep import plots
from depthmup.sweep.axes import LEARNING_RATE, column, parse, put
from depthmup.sweep.engine import identity
from depthmup.sweep.plan import axes
from depthmup.train.assemble import problem_of
from depthmup.train.recipe import chance
from depthmup.train.workdir import Row, write_atomically

VERSIONS = ("jax", "flax", "optax", "numpy")


class Curve(NamedTuple):
    """All trials of one optimizer and parameterization along one axis."""

    optimizer: str
    parameterization: str
    axis: str
    result: Transfer
    chance: float  # the loss of knowing nothing
    variant: str = ""  # the values of the axes that the config adds

    @property
    def name(self) -> str:
        return f"{self.parameterization} {self.variant}".strip()


def judge(rows: Sequence[Row], settings: Settings) -> list[Curve]:
    """The transfer verdict of every optimizer and parameterization along every axis; losses are capped at chance."""
    curves = []
    for axis, values in axes(settings):
        other, fixed = ("width", settings.model.width) if axis == "depth" else ("depth", settings.model.depth)
        for (optimizer, name, variant), table in _variants(rows, settings).items():
            table = [row for row in table if row[other] == fixed and row[axis] in values]
            cap = _chance(table[0], settings)
            curves.append(Curve(optimizer, name, axis, transfer(table, axis, cap), cap, variant))
    return curves


def best_table(rows: Sequence[Row], settings: Settings) -> str:
    """The best learning rate of every optimizer, parameterization and variant at every shape, as text."""
    lines = [f"{'':40}{'width':>7}{'depth':>7}  best log2 learning rate, loss there"]
    for (optimizer, name, variant), table in _variants(rows, settings).items():
        for width, depth in dict.fromkeys((row["width"], row["depth"]) for row in table):
            of_rate: dict[float, list[float]] = {}
            for row in table:
                if (row["width"], row["depth"]) == (width, depth):
                    loss = math.inf if row["loss"] is None or row["diverged"] else row["loss"]
                    of_rate.setdefault(row["learning_rate"], []).append(loss)
            loss, rate = min((sum(losses) / len(losses), rate) for rate, losses in of_rate.items())
            found = f"{math.log2(rate):.2f}  {loss:.4f}" if math.isfinite(loss) else "none"
            lines.append(f"{f'{optimizer} {name} {variant}':40}{width:>7}{depth:>7}  {found}")
    return "\n".join(lines)


def _variants(rows: Sequence[Row], settings: Settings) -> dict[tuple[str, str, str], list[Row]]:
    """(optimizer, parameterization, values of the axes of sweep.axes in words) -> its rows, in their order."""
    added = [column(key) for key in parse(settings) if key != LEARNING_RATE]
    result: dict[tuple[str, str, str], list[Row]] = {}
    order = sorted(rows, key=lambda row: settings.sweep.optimizers.index(row["optimizer"]))
    for row in order:
        words = ", ".join(f"{name} {_short(row[name])}" for name in added)
        result.setdefault((row["optimizer"], row["parameterization"], words), []).append(row)
    return result


def _chance(row: Row, settings: Settings) -> float:
    """Of the loss and the data set of a row, which may be axes."""
    own = put(settings, {key: row[column(key)] for key in ("loss", "data.name") if key in parse(settings)})
    return chance(own.loss, problem_of(own).batches.dataset.classes)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def verdict_table(curves: Sequence[Curve]) -> str:
    """The verdicts as text: a block per axis, a line per optimizer and parameterization."""
    lines = []
    for axis in dict.fromkeys(c.axis for c in curves):
        block = [c for c in curves if c.axis == axis]
        sizes = "".join(f"{size:>7g}" for size in block[0].result.values)
        wide = max(12, *(len(c.name) + 2 for c in block))
        lines += [
            "",
            f"log2 of the best learning rate at {axis}",
            f"{'':{10 + wide}}{sizes}   drift per doubling     verdict",
        ]
        for c in block:
            d = c.result.drift
            drift = f"{d.octaves_per_doubling:+.2f} [{d.low:+.2f}, {d.high:+.2f}]" if d else "-"
            best = "".join(f"{_log2(lr):>7}" for lr in c.result.optimal_lr)
            lines.append(f"{c.optimizer:10}{c.name:{wide}}{best}   {drift:22} {c.result.verdict}")
    return "\n".join(lines[1:])


def summary(curves: Sequence[Curve], settings: Settings) -> dict[str, Any]:
    """What summary.json holds."""

    def drift(result: Transfer) -> dict[str, float] | None:
        if result.drift is None:
            return None
        ends = {"low": result.drift.low, "high": result.drift.high}
        finite = {key: value if math.isfinite(value) else None for key, value in ends.items()}
        return {"octaves_per_doubling": result.drift.octaves_per_doubling, **finite}  # type: ignore[dict-item]

    sweeps = [
        {
            "optimizer": c.optimizer,
            "parameterization": c.parameterization,
            "variant": c.variant,
            "axis": c.axis,
            "trials": sum(losses.size for losses in c.result.losses),
            "values": c.result.values,
            "optimal_lr": c.result.optimal_lr,
            "stderr_octaves": [None if math.isnan(o.stderr) else o.stderr for o in c.result.optima],
            "drift": drift(c.result),
            "regret": c.result.regret,
            "best_loss": [o.loss for o in c.result.optima],
            "verdict": c.result.verdict,
            "reason": c.result.reason,
        }
        for c in curves
    ]
    return {"sweeps": sweeps, "settings": identity(settings)}


def write(curves: Sequence[Curve], rows: Sequence[Row], settings: Settings, workdir: Path, command: str) -> Path:
    """PNGs, summary.json and the self-contained report.html into `workdir`; the path of the report."""
    found = summary(curves, settings)
    write_atomically(workdir / "summary.json", json.dumps(found, indent=1))
    pictures = {}
    for axis, _ in axes(settings):
        pictures[f"loss_over_{axis}"] = plots.png(plots.loss_curves(curves, axis))
        pictures[f"optimum_over_{axis}"] = plots.png(plots.optima(curves, axis))
    for name, content in pictures.items():
        write_atomically(workdir / f"{name}.png", content)
    report = workdir / "report.html"
    best = "" if curves else best_table(rows, settings)
    write_atomically(report, _html(curves, best, pictures, found["settings"], command))
    return report


def _html(
    curves: Sequence[Curve], best: str, pictures: dict[str, bytes], settings: dict[str, Any], command: str
) -> str:
    import jinja2

    template = resources.files("depthmup.sweep").joinpath("report.html.jinja").read_text()
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(template)
    return page.render(
        curves=curves,
        best=best,
        log2=_log2,
        colors=plots.VERDICT_COLORS,
        pictures={name: base64.b64encode(content).decode() for name, content in pictures.items()},
        settings=json.dumps(settings, indent=1),
        versions={name: metadata.version(name) for name in VERSIONS},
        command=command,
    )


def _log2(lr: float | None) -> str:
    return "none" if lr is None else f"{math.log2(lr):.2f}"

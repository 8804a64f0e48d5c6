"""summary.json, pictures and report.html of a sweep."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from importlib import metadata, resources
from pathlib import Path

from matplotlib.figure import Figure

from depthmup.settings import Settings
from depthmup.sweep import history_plots, plots
from depthmup.sweep.histories import Histories
from depthmup.sweep.tables import best_table, log2, summary
from depthmup.sweep.verdicts import Curve
from depthmup.train.workdir import Row, write_atomically

VERSIONS = ("jax", "flax", "optax", "numpy")


def write(curves: Sequence[Curve], rows: Sequence[Row], settings: Settings, workdir: Path, command: str) -> Path:
    """PNGs, summary.json and the self-contained report.html into `workdir`; the path of the report."""
    import jinja2

    found = summary(curves, settings)
    write_atomically(workdir / "summary.json", json.dumps(found, indent=1))
    pictures, settles = {}, []
    if curves:
        histories = Histories(workdir, rows)
        settles = [histories.settles(c) for c in curves]
        for name, title, figure in _figures(curves, histories):
            if figure:
                content = plots.png(figure)
                write_atomically(workdir / f"{name}.png", content)
                pictures[name] = title, base64.b64encode(content).decode(), f"{figure.get_figwidth():.1f}"
    template = resources.files("depthmup.sweep").joinpath("report.html.jinja").read_text()
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(template)
    html = page.render(
        curves=curves,
        best="" if curves else best_table(rows, settings),
        rules=list(dict.fromkeys(rule.name for c in curves for rule in c.rules)),
        settles=settles,
        log2=log2,
        colors=plots.VERDICT_COLORS,
        pictures=pictures,
        settings=json.dumps(found["settings"], indent=1),
        versions={name: metadata.version(name) for name in VERSIONS},
        command=command,
    )
    write_atomically(workdir / "report.html", html)
    return workdir / "report.html"


def _figures(curves: Sequence[Curve], histories: Histories) -> Iterator[tuple[str, str, Figure | None]]:
    """(name of the file, what it shows, picture)."""
    for axis, key in dict.fromkeys((c.axis, c.hyperparameter) for c in curves):
        own = [c for c in curves if (c.axis, c.hyperparameter) == (axis, key)]
        name = key.replace("_", " ")
        of = "" if key == "learning_rate" else f"_{key.replace(' ', '')}"
        yield f"loss_over_{axis}{of}", f"Loss against {name} at each {axis}", plots.loss_curves(own)
        yield f"optimum_over_{axis}{of}", f"Optimal {name} against {axis}", plots.optima(own)
        if key == "learning_rate":
            title = f"Learning curves at each {axis}"
            yield f"curves_over_{axis}", title, history_plots.learning_curves(own, histories, axis)
            for quantity, (label, _) in history_plots.QUANTITIES.items():
                figure = history_plots.over_training(own, histories, axis, quantity)
                yield f"{quantity}_over_{axis}", f"{label} at each {axis}", figure
    yield "update_profiles", "Change of each layer in the first step", history_plots.update_profiles(curves)

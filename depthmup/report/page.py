"""The results of a sweep: tables as text, summary.json, pictures, and report.html."""

from __future__ import annotations

import base64
import datetime
import json
import math
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from matplotlib.figure import Figure

from depthmup.files import write_atomically
from depthmup.fit import Drift, Optimum
from depthmup.fit.picture import Picture, draw, png
from depthmup.fit.verdict import NOTHING, UNDECIDED
from depthmup.report import interactive, large_run, panels, words
from depthmup.report.interactive import json_of
from depthmup.report.law import question_of
from depthmup.report.learning_curves import LearningCurves
from depthmup.report.search import Course
from depthmup.report.words import NONE, Cells
from depthmup.settings import LEARNING_RATE, column
from depthmup.trials.plan import size_keys, sizes
from depthmup.trials.study import Study, judged_name
from depthmup.trials.verdicts import TransferCurve, best, variants


class Unfinished(NamedTuple):
    """A sweep that is going on.

    words: its progress, such as the time that is left. share: of its work that is done. at: seconds since the epoch.
    """

    words: str
    share: float
    at: float


def write_report(
    curves: Sequence[TransferCurve],
    rows: pandas.DataFrame,
    study: Study,
    workdir: Path,
    command: str,
    unfinished: Unfinished | None = None,
    course: Course | None = None,
) -> Path:
    """Write PNGs, summary.json and the self-contained report.html into `workdir`; the path of the report.

    Args:
      command: the command of the sweep, which the report shows; the report's other commands begin with its program.
      unfinished: the state of a sweep that is going on; then the report alone is written, without pictures, and an open
        one loads itself anew.
      course: of the search that chose the trials, if one did.
    """
    if not unfinished:
        write_atomically(workdir / "summary.json", json.dumps(summary(curves, study), indent=1))
    pictures = list[tuple[Picture, str]]()
    data: dict[str, Any] = {"plots": {}, "written": unfinished and unfinished.at}
    if curves:
        learning = LearningCurves(workdir)
        trials = interactive.clicked_trials(curves, study, learning, words.program(command))
        drawn = list(panels.pictures(curves, learning, trials.pop("keys")))
        data |= {"plots": interactive.plots(drawn), "trials": trials}
        for picture in drawn:
            image = b"" if unfinished else png(draw(picture))  # drawing takes seconds
            if image:
                write_atomically(workdir / f"{picture.name}.png", image)
            pictures.append((picture, base64.b64encode(image).decode()))
    html = render(
        "report.html.jinja",
        data,
        blocks=[_block(block, None if unfinished else study, command) for block in words.blocks(curves)],
        answers=[] if course or unfinished else words.bottom_line(curves),
        facts=facts(rows),
        next=_next(curves, study, command, course) if not unfinished else "",
        laws=laws(curves),
        rules=rules(curves),
        optima=optima_rows(curves),
        course=course and {"picture": _written(workdir / "search.png", course.figure()), "table": course.table()},
        question=question_of(judged_name(study.searched)),
        large_run=None if unfinished else _large_run(curves, rows, study, workdir),
        best="" if curves or rows.empty or study.searched != LEARNING_RATE else best_table(rows, study),
        unfinished=unfinished,
        sizes={axis: ", ".join(map(str, values)) for axis, values in sizes(study)},
        pictures=pictures,
        settings=json.dumps(study.identity, indent=1),
        environments=environments(rows),
        command=command,
    )
    write_atomically(workdir / "report.html", html)
    return workdir / "report.html"


def _next(curves: Sequence[TransferCurve], study: Study, command: str, course: Course | None) -> str:
    if course:
        return f"Next: train the target\n  {course.next}"
    return words.next_steps(curves, study, command) if curves else ""


def _written(path: Path, figure: Figure) -> str:
    """The picture for a page, when it is written to a file."""
    picture = png(figure)
    write_atomically(path, picture)
    return base64.b64encode(picture).decode()


def _large_run(curves: Sequence[TransferCurve], rows: pandas.DataFrame, study: Study, workdir: Path) -> Markup | None:
    """What the law over all sizes says, as HTML; its picture is written into `workdir`."""
    run = large_run.block(rows, study, curves)
    if run is None:
        return None
    if isinstance(run, str):
        return Markup("<p>No law over all sizes: {}.</p>").format(run)
    picture = run.picture()
    if picture:
        write_atomically(workdir / "large_run.png", picture)
    return Markup(run.html(picture))


def _block(block: words.Block, study: Study | None, command: str) -> dict[str, Any]:
    """The answer of one axis and hyperparameter, which the page shows first. study: None while the sweep goes on."""
    rows = words.table(block)
    for c, row in zip(block, rows, strict=True):
        if c.result.verdict in (UNDECIDED, NOTHING):
            row |= {"why": c.result.reason, "decided by": words.decides([c], study, command) if study else ""}
    return {
        "span": words.span(block),
        "sentences": words.sentences(block, study, command),
        "picture": panels.file_name("loss", block[0]),
        "table": rows,
        "columns": [title for title in rows[0] if title not in ("why", "decided by")],
    }


def facts(rows: pandas.DataFrame) -> str:
    """How many trainings and seeds a page rests on, when it was written, and in which environments."""
    seeds = f" of {rows['seed'].nunique()} seeds" if "seed" in rows else ""
    version = sys.modules["depthmup"].__version__  # to import the package here would be a circle
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    return "; ".join(
        [
            f"{len(rows):,} trainings{seeds}",
            f"written {today}",
            f"depthmup {version}",
            *environments(rows),
        ]
    )


def environments(rows: pandas.DataFrame) -> list[str]:
    """The environments in which the trials were computed, the most frequent first, with counts if there are several."""
    if "environment" not in rows:
        return []
    counts = rows["environment"].fillna("not known").value_counts()
    return [words if len(counts) == 1 else f"{count} trials: {words}" for words, count in counts.items()]


def render(template: str, data: Mapping[str, Any], **names: Any) -> str:
    """A page that needs no other file. template: of this folder. data: for report.js. names: for the template."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("depthmup.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        style=Markup(resources.files("depthmup.report").joinpath("style.css").read_text()),
        scripts=interactive.scripts(),
        # No name can end the script element that this stands in: <, > and & are written as \\u003c and so on.
        data=htmlsafe_json_dumps(json_of(data), allow_nan=False, separators=(",", ":")),
        meanings=words.MEANINGS,
        **names,
    )


def rules(curves: Sequence[TransferCurve]) -> list[Cells]:
    """A row for each curve along depth: how far each rule is off the best learning rate, in octaves: mean, largest."""
    return [
        {"": c.title} | {r.name: NONE if r.mean is None else f"{r.mean:.2f}, {r.worst:.2f}" for r in c.laws.rules}
        for c in curves
        if c.laws.rules
    ]


def laws(curves: Sequence[TransferCurve]) -> list[Cells]:
    """A row for each curve: the drifts of its optimum and its edge; along depth its power law."""
    result = []
    for c in curves:
        law = c.laws.power_law
        cells = {"drift": words.drift(c.result.drift), "drift of the edge": words.drift(c.result.edge_drift)}
        if law:
            r2 = f"{law.r2:.3f}" if not math.isnan(law.r2) else "all optima are equal"
            cells["power of depth"] = f"{law.exponent:+.2f} [{law.low:+.2f}, {law.high:+.2f}]"
            cells["R²"] = r2 + ("" if law.weighted else " (unweighted)")
        result.append(_name(c) | cells)
    return result


def optima_rows(curves: Sequence[TransferCurve]) -> list[Cells]:
    """A row for each curve and size."""
    result = []
    for c in curves:
        loss = f"best {c.measure.replace('_', ' ').replace('accuracy', 'error')}"
        for i, o in enumerate(c.result.optima):
            regret, regret_accuracy = c.result.regret[i], c.result.regret_accuracy[i]
            interval = "too few rates" if math.isnan(o.low) else f"[{words.rate(o.low)}, {words.rate(o.high)}]"
            result.append(
                {
                    **_name(c),
                    "size": f"{c.result.values[i]:g}",
                    "best": words.rate(o.learning_rate) if o.learning_rate else o.reason,
                    "interval": interval if o.learning_rate else "",
                    "edge": _edge(o),
                    "all seeds train up to": words.rate(o.edge.all_train) if o.edge else NONE,
                    loss: f"{o.loss:.4f}" if o.learning_rate else NONE,
                    "regret": "diverges or none" if regret is None else f"{regret:.4f}",
                    "cost": str(c.result.costs[i] or NONE),
                    "in accuracy": str(regret_accuracy or ""),
                    "answer": c.result.answers[i],
                }
            )
    return result


def verdict_table(curves: Sequence[TransferCurve]) -> str:
    """The verdicts as text: a block of optima and one of edges for each axis and hyperparameter."""
    parts = []
    for block in words.blocks(curves):
        axis, name = block[0].axis, block[0].hyperparameter_name
        best, edges = list[Cells](), list[Cells]()
        for c in block:
            drift = {"drift per doubling": words.drift(c.result.drift)}
            cost = {"costs at most": str(c.result.cost or NONE), "verdict": c.result.verdict}
            best.append({"": c.title} | words.best_values(c) | drift | cost)
            if any(o.edge and o.edge.learning_rate for o in c.result.optima):
                ends = {
                    f"{size:g}": "none" if o.edge is None else words.rate(o.edge.learning_rate, "above")
                    for size, o in zip(c.result.values, c.result.optima, strict=True)
                }
                edges.append({"": c.title} | ends | {"drift per doubling": words.drift(c.result.edge_drift)})
        parts.append(
            f"best {name} at {axis} (*: at the edge; none: no optimum inside the grid)\n{words.table_text(best)}"
        )
        if edges:
            about = f"edge, the {name} above which training is not possible, at {axis}"
            parts.append(
                f"{about} (above: beyond the grid; none: no value trains every seed)\n{words.table_text(edges)}"
            )
    return "\n\n".join(parts)


def rule_table(curves: Sequence[TransferCurve]) -> str:
    """`rules` as text; "" without a curve along depth."""
    about = "octaves between the best learning rate at a depth and what a rule makes of the smallest depth's best"
    rows = rules(curves)
    return f"{about}: mean, largest\n{words.table_text(rows)}" if rows else ""


def best_table(rows: pandas.DataFrame, study: Study) -> str:
    """The best learning rate of every optimizer, parameterization and variant at every shape, as text."""
    measure, cells = study.sweep.judge_by, []
    columns = [column(key) for key in size_keys(study)] or ["width", "depth"]  # the base alone is on no axis
    for names, trials in variants(rows, study):
        for shape, of_shape in trials.groupby(columns, sort=False):
            rate, value = best(of_shape, measure)
            value = 1 - value if measure.endswith("accuracy") else value
            is_known = math.isfinite(value)
            cells.append(
                {
                    "": " ".join(names).strip(),
                    **{name: str(size) for name, size in zip(columns, shape, strict=True)},
                    "best learning rate": words.rate(rate) if is_known else "none",
                    f"{measure} there": f"{value:.4f}" if is_known else "",
                }
            )
    return words.table_text(cells)


def summary(curves: Sequence[TransferCurve], study: Study) -> dict[str, Any]:
    """The content of summary.json."""
    return {"sweeps": [json_of(_summary_of(c)) for c in curves], "settings": study.identity}


def _summary_of(c: TransferCurve) -> dict[str, Any]:
    result, laws, edges = c.result, c.laws, [o.edge for o in c.result.optima]
    power_law = "exponent", "low", "high", "coefficient", "r2", "weighted"
    return {
        **_fields(c, "optimizer", "parameterization", "variant", "axis", "hyperparameter", "measure"),
        "trials": len(c.trials),
        **_fields(result, "values", "optimal_lr"),
        "interval": [[o.low, o.high] for o in result.optima],
        "stderr_octaves": [o.stderr for o in result.optima],
        "at_edge": [o.at_edge for o in result.optima],
        "edge": {
            "learning_rate": [edge and edge.learning_rate for edge in edges],
            "interval": [edge and [edge.low, edge.high] for edge in edges],
            "all_train": [edge and edge.all_train for edge in edges],
            "drift": _interval(result.edge_drift),
        },
        "drift": _interval(result.drift),
        **_fields(result, "regret", "margin", "tuned", "answers"),
        "cost": result.costs,
        "largest_cost": result.cost,
        **_fields(result, "needs", "regret_accuracy"),
        "best_loss": [o.loss for o in result.optima],
        **_fields(result, "verdict", "reason"),
        **({"power_law": _fields(laws.power_law, *power_law)} if laws.power_law else {}),
        "rules": {
            rule.name: {"tuned": result.values[rule.tuned], **_fields(rule, "predicted", "octaves_off", "regret")}
            for rule in laws.rules
        },
        "maximal_update_lr": {f"{size:g}": update.learning_rate for size, update in laws.updates.items()},
    }


def _name(c: TransferCurve) -> Cells:
    """The first cells of a row in a table of several axes."""
    other = "" if c.of_rate else f"{c.hyperparameter_name} over "
    return {"": c.title, "over": f"{other}{c.axis}"}


def _interval(drift: Drift | None) -> dict[str, Any] | None:
    return drift and _fields(drift, "octaves_per_doubling", "low", "high")


def _edge(o: Optimum) -> str:
    if o.edge is None or o.edge.learning_rate is None:
        return NONE
    interval = "" if math.isnan(o.edge.low) else f" [{words.rate(o.edge.low)}, {words.rate(o.edge.high)}]"
    return f"{words.rate(o.edge.learning_rate)}{interval}"


def _fields(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}

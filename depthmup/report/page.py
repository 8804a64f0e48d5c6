"""The results of a sweep: tables as text, summary.json, pictures, and report.html."""

from __future__ import annotations

import base64
import datetime
import json
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

from depthmup import cli_flags
from depthmup.files import write_atomically
from depthmup.fit import Drift
from depthmup.fit.picture import Picture, draw, png
from depthmup.fit.thresholds import BOTH_SIDES, ONE_SIDE
from depthmup.fit.verdict import MEANINGS, NOTHING, UNDECIDED
from depthmup.report import interactive, large_run, panels, words
from depthmup.report.interactive import json_of
from depthmup.report.law import question_of
from depthmup.report.learning_curves import LearningCurves
from depthmup.report.search import Course
from depthmup.report.tables import best_table, blocks, laws, optima_rows, rules, table
from depthmup.settings import LEARNING_RATE
from depthmup.trials.plan import sizes
from depthmup.trials.study import Study, judged_name
from depthmup.trials.verdicts import TransferCurve


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
        trials = interactive.clicked_trials(curves, study, learning, cli_flags.program(command))
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
        blocks=[_block(block, None if unfinished else study, command) for block in blocks(curves)],
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
    rows = table(block)
    for c, row in zip(block, rows, strict=True):
        if c.result.verdict in (UNDECIDED, NOTHING):
            row |= {"why": c.result.reason, "decided by": words.decides([c], study, command) if study else ""}
    return {
        "span": block[0].span,
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
        meanings=MEANINGS,
        level=BOTH_SIDES,
        one_side=ONE_SIDE,
        **names,
    )


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


def _interval(drift: Drift | None) -> dict[str, Any] | None:
    return drift and _fields(drift, "octaves_per_doubling", "low", "high")


def _fields(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}

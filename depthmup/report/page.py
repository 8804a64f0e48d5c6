"""What a sweep has found: tables as text, summary.json, pictures, and report.html."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from matplotlib.figure import Figure

from depthmup.files import write_atomically
from depthmup.fit import Drift, Optimum, Rule
from depthmup.report import figures, interactive
from depthmup.report.curves import TransferCurve, best, variants
from depthmup.report.learning_curves import LearningCurves
from depthmup.settings import column
from depthmup.trials.plan import size_keys, sizes
from depthmup.trials.study import Study

NONE = "-"  # the cell of a value that does not exist
PROGRAMS = "depthmup", "python main.py"  # what a command may begin with
Cells = dict[str, str]  # a row of a table: title of the column -> text


class Picture(NamedTuple):
    """title: what it shows. png: base64. inches: its width."""

    title: str
    png: str
    inches: str


class Unfinished(NamedTuple):
    """Of a sweep that is going on: where it is, in words; the share that is done; the time of this, since the epoch."""

    words: str
    share: float
    at: float


def write(
    curves: Sequence[TransferCurve],
    rows: pandas.DataFrame,
    study: Study,
    workdir: Path,
    command: str,
    unfinished: Unfinished | None = None,
) -> Path:
    """Write PNGs, summary.json and the self-contained report.html into `workdir`; the path of the report.

    Args:
      command: what made the report. It says how the report's commands begin, too.
      unfinished: of a sweep that is going on; then the report alone is written, and loads itself anew while it is open.
    """
    found = summary(curves, study)
    if not unfinished:
        write_atomically(workdir / "summary.json", json.dumps(found, indent=1))
    pictures, settled = dict[str, Picture](), list[list[float | None]]()
    data: dict[str, Any] = {"plots": {}, "written": unfinished and unfinished.at}
    if curves:
        learning = LearningCurves(workdir)
        trials = interactive.trials(curves, study, learning, _program(command))
        data |= {"plots": interactive.plots(curves, trials.pop("keys")), "trials": trials}
        settled = [[None] * len(c.result.values) if unfinished else learning.settles(c) for c in curves]
        for name, title, draw in _figures(curves, learning):
            if unfinished:  # plots alone: drawing takes seconds
                if name in data["plots"]:
                    pictures[name] = Picture(title, "", "")
            elif figure := draw():
                content = figures.png(figure)
                write_atomically(workdir / f"{name}.png", content)
                pictures[name] = Picture(title, base64.b64encode(content).decode(), f"{figure.get_figwidth():.1f}")
    html = render(
        "report.html.jinja",
        data,
        verdicts=verdicts(curves),
        edges=edges(curves),
        rules=rules(curves),
        laws=laws(curves),
        optima=optima(curves, settled),
        others=any(c.hyperparameter != "learning_rate" for c in curves),
        best="" if curves or rows.empty else best_table(rows, study),
        unfinished=unfinished,
        sizes={axis: ", ".join(map(str, values)) for axis, values in sizes(study)},
        pictures=pictures,
        plots=list(data["plots"]),
        settings=json.dumps(found["settings"], indent=1),
        environments=environments(rows),
        command=command,
    )
    write_atomically(workdir / "report.html", html)
    return workdir / "report.html"


def environments(rows: pandas.DataFrame) -> list[str]:
    """What the trials were computed with, the most frequent first, with counts where there are several; as rows say."""
    if "environment" not in rows:
        return []
    counts = rows["environment"].fillna("not known").value_counts()
    return [words if len(counts) == 1 else f"{count} trials: {words}" for words, count in counts.items()]


def render(template: str, data: Mapping[str, Any], **names: Any) -> str:
    """A page of this folder that needs no other file. data: what report.js reads; names: what the template does."""
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
        data=htmlsafe_json_dumps(_finite(data), allow_nan=False, separators=(",", ":")),
        colors=figures.VERDICT_COLORS,
        **names,
    )


def verdicts(curves: Sequence[TransferCurve]) -> list[Cells]:
    """A row for each curve; the optimum at each size is in a column named by the size, * if it is at the edge."""
    result = []
    for c in curves:
        found = c.result
        cells = {"verdict": found.verdict, "why": found.reason}
        cells |= {"cost at most": str(found.cost or NONE), "drift": _drift(found.drift)}
        pairs = zip(found.values, found.optima, strict=True)
        sizes = {f"{size:g}": _log2(o.learning_rate) + "*" * o.at_edge for size, o in pairs}
        result.append({**_names(c), **cells, **sizes})
    return result


def edges(curves: Sequence[TransferCurve]) -> list[Cells]:
    """A row for each curve with an edge at some size; the edge at each size is in a column named by the size: "above"
    where it is beyond the grid, "none" where no value trains every seed."""
    result = []
    for c in curves:
        of_size = {f"{size:g}": o.edge for size, o in zip(c.result.values, c.result.optima, strict=True)}
        if not any(edge and edge.learning_rate for edge in of_size.values()):
            continue
        cells = {"drift": _drift(c.result.edge_drift)}
        sizes = {
            size: "above" if edge and edge.learning_rate is None else _log2(edge and edge.learning_rate)
            for size, edge in of_size.items()
        }
        result.append({**_names(c), **cells, **sizes})
    return result


def rules(curves: Sequence[TransferCurve]) -> list[Cells]:
    """A row for each curve along depth and each rule: how far the rule is off at each depth, and what this costs."""
    result = []
    for c in curves:
        for rule in c.laws.rules:
            off = NONE if rule.mean is None else f"{rule.mean:.2f}, {rule.worst:.2f}"
            at_depth = {f"depth {size:g}": _rule_at(rule, i) for i, size in enumerate(c.result.values)}
            result.append({**_names(c), "rule": rule.name, "mean, largest": off, **at_depth})
    return result


def laws(curves: Sequence[TransferCurve]) -> list[Cells]:
    """A row for each curve along depth: its power law, and what two anchors predict."""
    result = []
    for c in curves:
        if not c.laws.rules:
            continue
        law, segments = c.laws.power_law, []
        for segment in c.laws.segments:
            pairs = zip(segment.depths, segment.relative_error, strict=True)
            errors = ", ".join(f"{depth:.0f} {100 * error:+.0f}%" for depth, error in pairs)
            segments.append(f"{segment.name} ({', '.join(map(str, segment.anchors))}): {errors}")
        r2 = ""
        if law:
            r2 = f"{law.r2:.3f}" if not math.isnan(law.r2) else "all optima are equal"
            r2 += "" if law.weighted else " (unweighted)"
        result.append(
            {
                **_names(c),
                "optimum ∝ depth to the power of": f"{law.exponent:+.2f}" if law else "fewer than three optima",
                "95%": f"[{law.low:+.2f}, {law.high:+.2f}]" if law else "",
                "R²": r2,
                "two anchors predict (relative error)": "; ".join(segments),
            }
        )
    return result


def optima(curves: Sequence[TransferCurve], settled: Sequence[Sequence[float | None]]) -> list[Cells]:
    """A row for each curve and size. settled: as `LearningCurves.settles` returns it, for each curve."""
    result = []
    for c, shares in zip(curves, settled, strict=True):
        loss = f"best {c.measure.replace('_', ' ').replace('accuracy', 'error')}"
        for i, o in enumerate(c.result.optima):
            regret, regret_accuracy, share = c.result.regret[i], c.result.regret_accuracy[i], shares[i]
            interval = "too few rates" if math.isnan(o.low) else f"[{_log2(o.low)}, {_log2(o.high)}]"
            result.append(
                {
                    **_names(c),
                    "size": f"{c.result.values[i]:g}",
                    "log2 optimum": _log2(o.learning_rate) if o.learning_rate else o.reason,
                    "interval": interval if o.learning_rate else "",
                    "edge": _edge(o),
                    "all seeds train up to": _log2(o.edge.all_train) if o.edge else NONE,
                    loss: f"{o.loss:.4f}" if o.learning_rate else NONE,
                    "regret": "diverges or none" if regret is None else f"{regret:.4f}",
                    "cost": str(c.result.costs[i] or NONE),
                    "in accuracy": str(regret_accuracy or ""),
                    "answer": c.result.answers[i],
                    "settled": "" if share is None else f"{100 * share:.0f}%",
                }
            )
    return result


def answers(curves: Sequence[TransferCurve]) -> str:
    """What a sweep has found, for people: a line for each curve, then the learning rates to use at other sizes."""
    lines = [f"{c.optimizer}, {c.name}, {_followed(c)}{c.result.line}" for c in curves]
    rates = [c for c in curves if c.hyperparameter == "learning_rate"]
    of_name: dict[tuple[str, str], list[TransferCurve]] = {}
    for c in rates:
        of_name.setdefault((c.optimizer, c.name), []).append(c)
    use = []
    for (optimizer, name), own in of_name.items():
        if all(c.result.verdict == "transfers" for c in own):
            at = own[0].result
            use.append(f"{at.tuned:.3g} for {optimizer} under {name} (the best of {at.axis} {at.values[0]:g})")
    if rates:
        words = "; ".join(use) or "none is known to be right at another size: tune there, or see what would decide"
        lines += ["", f"learning rate to use at larger sizes: {words}"]
    return "\n".join(lines)


def _followed(c: TransferCurve) -> str:
    return "" if c.hyperparameter == "learning_rate" else f"best {c.hyperparameter.replace('_', ' ')} over "


def verdict_table(curves: Sequence[TransferCurve]) -> str:
    """The verdicts as text: a block of optima and one of edges for each axis and hyperparameter."""
    blocks = []
    for axis, hyperparameter in dict.fromkeys((c.axis, c.hyperparameter) for c in curves):
        block = [c for c in curves if (c.axis, c.hyperparameter) == (axis, hyperparameter)]
        sizes = {f"{size:g}": (f"{size:g}", "{:>8}") for size in block[0].result.values}
        drift = {"drift": ("drift per doubling", "   {:22}")}
        name = hyperparameter.replace("_", " ")
        found = verdicts(block)
        more = {"cost at most": ("costs at most", " {:21}"), "verdict": ("verdict", "{}")}
        table = _text(found, sizes | drift | more)
        legend = _legend(found, sizes, {"*": "at the edge", "none": "no optimum inside the grid"})
        blocks.append(f"log2 of the best {name} at {axis}{legend}\n{table}")
        if found := edges(block):
            table = _text(found, sizes | drift)
            legend = _legend(found, sizes, {"above": "beyond the grid", "none": "no value trains every seed"})
            blocks.append(
                f"log2 of the edge, the {name} above which training is not possible, at {axis}{legend}\n{table}"
            )
    return "\n\n".join(blocks)


def rule_table(curves: Sequence[TransferCurve]) -> str:
    """How far the learning rate of each rule is off the best one, as text; "" without a curve along depth."""
    of_curve: dict[tuple[str, str], Cells] = {}
    found = rules(curves)
    for row in found:
        at = row["optimizer"], row["parameterization"]
        of_curve.setdefault(at, dict(row))[row["rule"]] = row["mean, largest"]
    if not found:
        return ""
    names = dict.fromkeys(row["rule"] for row in found)
    table = _text(list(of_curve.values()), {name: (name, "{:>14}") for name in names})
    return (
        "octaves between the best learning rate at a depth and what a rule makes of the smallest depth's best: mean, "
        f"largest\n{table}"
    )


def best_table(rows: pandas.DataFrame, study: Study) -> str:
    """The best learning rate of every optimizer, parameterization and variant at every shape, as text."""
    measure = study.sweep.judge_by
    columns = [column(key) for key in size_keys(study)]
    heads = "".join(f"{name:>11}" for name in columns)
    lines = [f"{'':40}{heads}  best log2 learning rate, {measure} there"]
    for names, trials in variants(rows, study):
        for shape, of_shape in trials.groupby(columns, sort=False):
            rate, value = best(of_shape, measure)
            value = 1 - value if measure.endswith("accuracy") else value
            optimum = f"{_log2(rate)}  {value:.4f}" if math.isfinite(value) else "none"
            lines.append(f"{' '.join(names):40}{''.join(f'{size:>11}' for size in shape)}  {optimum}")
    return "\n".join(lines)


def summary(curves: Sequence[TransferCurve], study: Study) -> dict[str, Any]:
    """The content of summary.json."""
    return {"sweeps": [_finite(_summary_of(c)) for c in curves], "settings": study.identity}


def _summary_of(c: TransferCurve) -> dict[str, Any]:
    found, laws = c.result, c.laws
    result: dict[str, Any] = {
        "optimizer": c.optimizer,
        "parameterization": c.parameterization,
        "variant": c.variant,
        "axis": c.axis,
        "hyperparameter": c.hyperparameter,
        "measure": c.measure,
        "trials": len(c.trials),
        "values": found.values,
        "optimal_lr": found.optimal_lr,
        "interval": [[o.low, o.high] for o in found.optima],
        "stderr_octaves": [o.stderr for o in found.optima],
        "at_edge": [o.at_edge for o in found.optima],
        "edge": {
            "learning_rate": [o.edge and o.edge.learning_rate for o in found.optima],
            "interval": [o.edge and [o.edge.low, o.edge.high] for o in found.optima],
            "all_train": [o.edge and o.edge.all_train for o in found.optima],
            "drift": _interval(found.edge_drift),
        },
        "drift": _interval(found.drift),
        "regret": found.regret,
        "margin": found.margin,
        "tuned": found.tuned,
        "answers": found.answers,
        "cost": [cost and cost._asdict() for cost in found.costs],
        "largest_cost": found.cost and found.cost._asdict(),
        "needs": [need._asdict() for need in found.needs],
        "regret_accuracy": [cost and cost._asdict() for cost in found.regret_accuracy],
        "best_loss": [o.loss for o in found.optima],
        "verdict": found.verdict,
        "reason": found.reason,
    }
    if laws.power_law:
        names = "exponent", "low", "high", "coefficient", "r2", "weighted"
        result["power_law"] = _fields(laws.power_law, *names)
    result["rules"] = {
        rule.name: {"tuned": found.values[rule.tuned], **_fields(rule, "predicted", "octaves_off", "regret")}
        for rule in laws.rules
    }
    result["segments"] = [segment._asdict() for segment in laws.segments]
    result["maximal_update_lr"] = {f"{size:g}": update.learning_rate for size, update in laws.updates.items()}
    return result


def _figures(
    curves: Sequence[TransferCurve], learning: LearningCurves
) -> Iterator[tuple[str, str, Callable[[], Figure | None]]]:
    """(name of the file, what it shows, what draws it)."""
    for axis, key in dict.fromkeys((c.axis, c.hyperparameter) for c in curves):
        own = [c for c in curves if (c.axis, c.hyperparameter) == (axis, key)]
        name = key.replace("_", " ")
        suffix = "" if key == "learning_rate" else f"_{key.replace(' ', '')}"
        yield f"loss_over_{axis}{suffix}", f"Loss against {name} at each {axis}", partial(figures.loss_curves, own)
        yield f"optimum_over_{axis}{suffix}", f"Optimal {name} against {axis}", partial(figures.optima, own)
        if key == "learning_rate":
            title = f"Learning curves at each {axis}"
            yield f"curves_over_{axis}", title, partial(figures.learning_curves, own, learning)
            for quantity, (label, _) in figures.QUANTITIES.items():
                if quantity in learning.quantities:
                    draw = partial(figures.over_training, own, learning, quantity)
                    yield f"{quantity}_over_{axis}", f"{label} at each {axis}", draw
    title = "Change of each layer in the first step"
    yield "update_profiles", title, partial(figures.update_profiles, curves)


def _text(rows: Sequence[Cells], columns: Mapping[str, tuple[str, str]]) -> str:
    """A line of titles and a line for each row, after the names of its curve. columns: key -> (title, format)."""
    wide = max(12, *(len(row["parameterization"]) + 2 for row in rows))
    lines = ["".join([" " * (10 + wide), *(form.format(title) for title, form in columns.values())])]
    for row in rows:
        cells = [form.format(row.get(key, NONE)) for key, (_, form) in columns.items()]
        lines.append("".join([f"{row['optimizer']:10}{row['parameterization']:{wide}}", *cells]))
    return "\n".join(lines)


def _legend(rows: Sequence[Cells], columns: Iterable[str], meanings: Mapping[str, str]) -> str:
    """What the words in the cells of these columns mean, in brackets; "" if there are none."""
    cells = [row.get(key, "") for row in rows for key in columns]
    used = [f"{word}: {meaning}" for word, meaning in meanings.items() if any(word in cell for cell in cells)]
    return f" ({'; '.join(used)})" if used else ""


def _names(c: TransferCurve) -> Cells:
    hyperparameter = c.hyperparameter.replace("_", " ")
    return {"over": c.axis, "optimum of": hyperparameter, "parameterization": c.name, "optimizer": c.optimizer}


def _program(command: str) -> str:
    """How the commands of a page begin; from Python as the module, which is there wherever the package is."""
    return next((program for program in PROGRAMS if command.startswith(f"{program} ")), "python -m depthmup")


def _drift(drift: Drift | None) -> str:
    return f"{drift.octaves_per_doubling:+.2f} [{drift.low:+.2f}, {drift.high:+.2f}]" if drift else NONE


def _interval(drift: Drift | None) -> dict[str, Any] | None:
    return drift and _fields(drift, "octaves_per_doubling", "low", "high")


def _edge(o: Optimum) -> str:
    if o.edge is None or o.edge.learning_rate is None:
        return NONE
    interval = "" if math.isnan(o.edge.low) else f" [{_log2(o.edge.low)}, {_log2(o.edge.high)}]"
    return f"{_log2(o.edge.learning_rate)}{interval}"


def _rule_at(rule: Rule, i: int) -> str:
    """The cell of a rule at the i-th depth: octaves off the optimum, and the regret in brackets."""
    off, regret = rule.octaves_off[i], rule.regret[i]
    if i == rule.tuned:
        return "tuned"
    if rule.predicted[i] is None:
        return NONE
    if off is None:
        return "no optimum"
    cost = Markup("&times;") if regret is None else f"{regret:.3f}"
    return Markup("{} <small>({})</small>").format(f"{off:+.2f}", cost)


def _log2(rate: float | None) -> str:
    return "none" if rate is None else f"{math.log2(rate):.2f}"


def _fields(of: object, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def _finite(tree: Any) -> Any:
    """JSON has neither NaN nor infinity: null."""
    if isinstance(tree, Mapping):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree

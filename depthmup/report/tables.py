"""The tables of a sweep: what transfers, the optima at each size, the laws along depth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas

from depthmup.fit import Optimum
from depthmup.fit.table import grouped_by
from depthmup.settings import column
from depthmup.trials.plan import size_keys
from depthmup.trials.study import Study
from depthmup.trials.verdicts import TransferCurve, best, variants

NONE = "-"  # the cell of a value that does not exist
Cells = dict[str, str]  # a row of a table: title of the column -> text
Block = Sequence[TransferCurve]  # curves of one axis and one hyperparameter


def blocks(curves: Sequence[TransferCurve]) -> list[Block]:
    """The curves of each axis and hyperparameter."""
    return list(grouped_by(curves, lambda c: (c.axis, c.hyperparameter)).values())


def rate(value: float | None, without: str = "none") -> str:
    """A learning rate, or another hyperparameter, with three digits; without: if there is none."""
    return without if value is None else f"{value:.3g}"


def table_text(rows: Sequence[Cells]) -> str:
    """A table as text, with columns as wide as they must be."""
    titles = {title: title for row in rows for title in row}
    widths = {title: max(len(row.get(title, NONE)) for row in (titles, *rows)) for title in titles}
    return "\n".join("  ".join(f"{row.get(t, NONE):{widths[t]}}" for t in titles).rstrip() for row in (titles, *rows))


def table(block: Block) -> list[Cells]:
    """A row for each curve."""
    first = block[0].result
    return [
        {
            block[0].span: c.title,
            f"tuned at {first.values[0]:g}": rate(c.result.tuned),
            f"best at {first.values[-1]:g}": rate(c.result.optimal_lr[-1]),
            "best value": c.result.moved or NONE,
            "tuned value": c.result.price or NONE,
            "verdict": c.result.verdict,
        }
        for c in block
    ]


def best_values(c: TransferCurve) -> Cells:
    """{size: its best value, with * if it is at the edge of the grid}"""
    pairs = zip(c.result.values, c.result.optima, strict=True)
    return {f"{size:g}": rate(o.learning_rate) + "*" * o.at_edge for size, o in pairs}


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
        cells = {"drift": str(c.result.drift or NONE), "drift of the edge": str(c.result.edge_drift or NONE)}
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
            interval = "too few rates" if math.isnan(o.low) else f"[{rate(o.low)}, {rate(o.high)}]"
            result.append(
                {
                    **_name(c),
                    "size": f"{c.result.values[i]:g}",
                    "best": rate(o.learning_rate) if o.learning_rate else o.reason,
                    "interval": interval if o.learning_rate else "",
                    "edge": _edge(o),
                    "all seeds train up to": rate(o.edge.all_train) if o.edge else NONE,
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
    for block in blocks(curves):
        axis, name = block[0].axis, block[0].hyperparameter_name
        best, edges = list[Cells](), list[Cells]()
        for c in block:
            drift = {"drift per doubling": str(c.result.drift or NONE)}
            cost = {"costs at most": str(c.result.cost or NONE), "verdict": c.result.verdict}
            best.append({"": c.title} | best_values(c) | drift | cost)
            if any(o.edge and o.edge.learning_rate for o in c.result.optima):
                ends = {
                    f"{size:g}": "none" if o.edge is None else rate(o.edge.learning_rate, "above")
                    for size, o in zip(c.result.values, c.result.optima, strict=True)
                }
                edges.append({"": c.title} | ends | {"drift per doubling": str(c.result.edge_drift or NONE)})
        parts.append(f"best {name} at {axis} (*: at the edge; none: no optimum inside the grid)\n{table_text(best)}")
        if edges:
            about = f"edge, the {name} above which training is not possible, at {axis}"
            parts.append(f"{about} (above: beyond the grid; none: no value trains every seed)\n{table_text(edges)}")
    return "\n\n".join(parts)


def rule_table(curves: Sequence[TransferCurve]) -> str:
    """`rules` as text; "" without a curve along depth."""
    about = "octaves between the best learning rate at a depth and what a rule makes of the smallest depth's best"
    rows = rules(curves)
    return f"{about}: mean, largest\n{table_text(rows)}" if rows else ""


def best_table(rows: pandas.DataFrame, study: Study) -> str:
    """The best learning rate of every optimizer, parameterization and variant at every shape, as text."""
    measure, cells = study.sweep.judge_by, []
    columns = [column(key) for key in size_keys(study)] or ["width", "depth"]  # the base alone is on no axis
    for names, trials in variants(rows, study):
        for shape, of_shape in trials.groupby(columns, sort=False):
            tuned, value = best(of_shape, measure)
            value = 1 - value if measure.endswith("accuracy") else value
            is_known = math.isfinite(value)
            cells.append(
                {
                    "": " ".join(names).strip(),
                    **{name: str(size) for name, size in zip(columns, shape, strict=True)},
                    "best learning rate": rate(tuned) if is_known else "none",
                    f"{measure} there": f"{value:.4f}" if is_known else "",
                }
            )
    return table_text(cells)


def _name(c: TransferCurve) -> Cells:
    """The first cells of a row in a table of several axes."""
    other = "" if c.of_rate else f"{c.hyperparameter_name} over "
    return {"": c.title, "over": f"{other}{c.axis}"}


def _edge(o: Optimum) -> str:
    if o.edge is None or o.edge.learning_rate is None:
        return NONE
    interval = "" if math.isnan(o.edge.low) else f" [{rate(o.edge.low)}, {rate(o.edge.high)}]"
    return f"{rate(o.edge.learning_rate)}{interval}"

"""What a sweep has found, as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from depthmup.fit import Transfer
from depthmup.settings import LEARNING_RATE, Settings
from depthmup.sweep.engine import identity
from depthmup.sweep.judged import score
from depthmup.sweep.verdicts import Curve, variants
from depthmup.train.workdir import Row


def best_table(rows: Sequence[Row], settings: Settings) -> str:
    """The best learning rate of every optimizer, parameterization and variant at every shape, as text."""
    lines = [f"{'':40}{'width':>7}{'depth':>7}  best log2 learning rate, {settings.sweep.judge_by} there"]
    for (optimizer, name, variant), table in variants(rows, settings, LEARNING_RATE).items():
        for width, depth in dict.fromkeys((row["width"], row["depth"]) for row in table):
            of_rate: dict[float, list[float]] = {}
            for row in table:
                if (row["width"], row["depth"]) == (width, depth):
                    of_rate.setdefault(row["learning_rate"], []).append(score(row, settings))
            value, rate = min((sum(scores) / len(scores), rate) for rate, scores in of_rate.items())
            value = 1 - value if settings.sweep.judge_by.endswith("accuracy") else value
            found = f"{math.log2(rate):.2f}  {value:.4f}" if math.isfinite(value) else "none"
            lines.append(f"{f'{optimizer} {name} {variant}':40}{width:>7}{depth:>7}  {found}")
    return "\n".join(lines)


def verdict_table(curves: Sequence[Curve]) -> str:
    """The verdicts as text: a block per axis and hyperparameter, a line per optimizer and parameterization."""
    lines = []
    for axis, key in dict.fromkeys((c.axis, c.hyperparameter) for c in curves):
        block = [c for c in curves if (c.axis, c.hyperparameter) == (axis, key)]
        sizes = "".join(f"{size:>7g}" for size in block[0].result.values)
        wide = max(12, *(len(c.name) + 2 for c in block))
        lines += [
            "",
            f"log2 of the best {key.replace('_', ' ')} at {axis}",
            f"{'':{10 + wide}}{sizes}   drift per doubling     verdict",
        ]
        for c in block:
            d = c.result.drift
            drift = f"{d.octaves_per_doubling:+.2f} [{d.low:+.2f}, {d.high:+.2f}]" if d else "-"
            best = "".join(f"{log2(lr):>7}" for lr in c.result.optimal_lr)
            lines.append(f"{c.optimizer:10}{c.name:{wide}}{best}   {drift:22} {c.result.verdict}")
    return "\n".join(lines[1:])


def rule_table(curves: Sequence[Curve]) -> str:
    """How far each rule's learning rate is off the best one, as text; "" without a curve along depth."""
    curves = [c for c in curves if c.rules]
    if not curves:
        return ""
    names = list(dict.fromkeys(rule.name for c in curves for rule in c.rules))
    wide = max(12, *(len(c.name) + 2 for c in curves))
    first = "".join(f"{name:>14}" for name in names)
    lines = [
        "octaves between the best learning rate at a depth and what a rule makes of the smallest depth's best: mean, "
        "largest",
        f"{'':{10 + wide}}{first}",
    ]
    for c in curves:
        of_name = {rule.name: rule for rule in c.rules}
        cells = []
        for name in names:
            rule = of_name.get(name)
            there = rule is not None and rule.mean is not None
            cells.append(f"{rule.mean:.2f}, {rule.worst:.2f}" if there else "-")  # type: ignore[union-attr]
        lines.append(f"{c.optimizer:10}{c.name:{wide}}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


def summary(curves: Sequence[Curve], settings: Settings) -> dict[str, Any]:
    """What summary.json holds."""
    return {"sweeps": [_of_curve(c) for c in curves], "settings": identity(settings)}


def _of_curve(c: Curve) -> dict[str, Any]:
    result = {
        "optimizer": c.optimizer,
        "parameterization": c.parameterization,
        "variant": c.variant,
        "axis": c.axis,
        "hyperparameter": c.hyperparameter,
        "measure": c.measure,
        "trials": sum(losses.size for losses in c.result.losses),
        "values": c.result.values,
        "optimal_lr": c.result.optimal_lr,
        "interval": [[o.low, o.high] for o in c.result.optima],
        "stderr_octaves": [o.stderr for o in c.result.optima],
        "octaves_to_divergence": [o.cliff for o in c.result.optima],
        "drift": _drift(c.result),
        "regret": c.result.regret,
        "regret_accuracy": c.result.regret_accuracy,
        "best_loss": [o.loss for o in c.result.optima],
        "verdict": c.result.verdict,
        "reason": c.result.reason,
    }
    if c.law:
        law = c.law
        result["power_law"] = {
            "exponent": law.exponent,
            "low": law.low,
            "high": law.high,
            "coefficient": law.coefficient,
            "r2": law.r2,
            "weighted": law.weighted,
        }
    result["rules"] = {
        rule.name: {
            "tuned": c.result.values[rule.tuned],
            "predicted": rule.predicted,
            "octaves_off": rule.octaves_off,
            "regret": rule.regret,
        }
        for rule in c.rules
    }
    result["segments"] = [segment._asdict() for segment in c.segments]
    result["maximal_update_lr"] = {f"{size:g}": update.learning_rate for size, update in c.updates.items()}
    return _finite(result)


def _drift(result: Transfer) -> dict[str, float] | None:
    return None if result.drift is None else {k: v for k, v in result.drift._asdict().items() if k != "intercept"}


def _finite(tree: Any) -> Any:
    """JSON has neither NaN nor infinity: null."""
    if isinstance(tree, Mapping):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def log2(lr: float | None) -> str:
    return "none" if lr is None else f"{math.log2(lr):.2f}"

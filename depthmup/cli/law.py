"""The verb `law`: what a table of trainings from anywhere says of a large run. It needs neither JAX nor absl."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from depthmup import cli_flags, fit
from depthmup.files import write_atomically
from depthmup.fit.law_rows import AXES, CONDITIONS, is_accuracy, read_columns
from depthmup.names import percent, unknown
from depthmup.report.law import LargeRun, law_page

# What a column is: its name, and the names that other programs give it.
NAMES: dict[str, tuple[str, ...]] = {
    "width": ("d_model", "n_embd", "hidden_size", "hidden_dim", "embed_dim"),
    "depth": ("n_layer", "n_layers", "num_layers", "layers", "num_hidden_layers"),
    "parameters": ("n", "params", "n_params", "num_params", "n_parameters", "num_parameters"),
    "tokens": ("d", "n_tokens", "num_tokens", "train_tokens"),
    "steps": ("n_steps", "num_steps", "train_steps", "max_steps", "iterations"),
    "batch_size": ("b", "bs", "batch", "global_batch_size", "gbs"),
    "learning_rate": ("lr", "max_lr", "peak_lr"),
    "loss": ("val_loss", "valid_loss", "validation_loss", "eval_loss", "final_loss"),
    "accuracy": ("acc", "val_acc", "val_accuracy", "validation_accuracy", "test_accuracy"),
    "seed": ("random_seed",),
    "diverged": (),
    "optimizer": ("optim", "opt"),
    "parameterization": ("parametrization",),
    "schedule": ("lr_schedule",),
    "context_length": ("context", "seq_len", "sequence_length"),
    "family": (),
    "data": (),
    "dataset": (),
}
INSTEAD = {"parameters": ("width", "depth"), "tokens": ("steps",)}  # sizes that a target in others leaves out


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def run_law(program: str, words: Sequence[str]) -> int:
    """Print what the table of a call says, and write its page. The exit status: 2 for a mistake, in one line."""
    if cli_flags.asks_for_help(words):
        print(cli_flags.help_text(program, words))
        return 0
    try:
        call = _parsed(words)
        target = _target(call.target)
        renamed = cli_flags.pairs("columns", call.columns, ":")
        columns, names = _columns(call.table, renamed, target)
        measure = "loss" if "loss" in columns else "accuracy"
        large = LargeRun(fit.scaling_law(columns, measure=measure), columns, measure, target)
        plan = _next(large, call, renamed)
        print(large)
        print(plan, end="")
        print(
            "columns:", ", ".join(f"{name} is {usual}" for usual, name in names.items() if name != usual) or "as named"
        )
        if call.report:
            write_atomically(Path(call.report), law_page(large, f"{program} {shlex.join(words)}"))
            print(f"report: {call.report}")
    except (ValueError, OSError) as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


def _next(large: LargeRun, call: argparse.Namespace, renamed: Mapping[str, str]) -> str:
    """Which of --candidates to train next, and what they are expected to bring; "" without them."""
    if not call.candidates:
        if call.budget or call.tolerance:
            raise ValueError(
                "--budget and --tolerance are of --candidates: give the CSV of trainings that could be made"
            )
        return ""
    if not large.target:
        raise ValueError("--candidates needs --target: the sizes of the run that the trainings are to tell of")
    columns, _ = _columns(call.candidates, renamed, large.target, ("learning_rate",))
    budget = cli_flags.number("budget", call.budget or "inf")
    tolerance = cli_flags.number("tolerance", call.tolerance or "0%", "%") / 100
    sizes = {axis: size for axis, size in large.target.items() if axis in large.law.axes}
    plan = fit.design(large.law, columns, sizes, budget=budget, tolerance=tolerance)
    shown = [name for name in (*large.law.axes, "learning_rate", "seed", "cost") if name in columns]
    lines = [
        [*(_cell(columns[name][row]) for name in shown), percent(worst)]
        for row, worst in zip(plan.rows, plan.worst_cost[1:], strict=True)
    ]
    table = [[*shown, "97.5% cost then"], *lines]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    of_table = ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in table]
    return "\n".join(["", f"train next: {plan}", *(of_table if lines else []), ""])


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("verb", choices=["law"])
    parser.add_argument("table", metavar=cli_flags.VERBS["law"].words)
    for name, flag in cli_flags.FLAGS.items():
        if "law" in flag.verbs:
            parser.add_argument(f"--{name}")
    return parser.parse_args(words)


def _target(text: str | None) -> dict[str, Any]:
    """{size or condition: its value} of --target."""
    result = dict[str, Any]()
    for name, value in cli_flags.pairs("target", text, "=").items():
        known = _usual(name)
        if known not in (*AXES, *CONDITIONS):
            raise unknown("size of --target", name, (*AXES, *CONDITIONS))
        try:
            result[known] = float(value)
        except ValueError:
            if known in AXES:
                raise ValueError(f"--target: {known} must be a number, got {value!r}") from None
            result[known] = value
    return result


def _same(one: Any, other: Any) -> bool:
    return str(one).casefold() == str(other).casefold()


def _usual(name: str) -> str | None:
    """What a column of this name is."""
    return next((usual for usual, others in NAMES.items() if name.lower() in (usual, *others)), None)


def _columns(
    table: str, renamed: Mapping[str, str], target: Mapping[str, Any], needed: Sequence[str] = ("learning_rate", "loss")
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """The columns of a table by the names of `NAMES`, of the rows whose conditions are those of the target; and the
    names that those have in the table. needed: besides the target's sizes; a table without a loss need not have the
    renamed columns."""
    columns, chosen = read_columns(table), dict(renamed)
    if "loss" not in needed:
        chosen = {name: usual for name, usual in chosen.items() if name in columns}
    for name, usual in chosen.items():
        if name not in columns:
            raise ValueError(f"--columns: {table} has no column {name!r} (it has {', '.join(columns)})")
        if usual not in NAMES:
            raise unknown("name in --columns", usual, NAMES)
        if usual == "loss" and is_accuracy(name):
            raise ValueError(f"--columns: {name} looks like an accuracy, whose largest value is best: {name}:accuracy")
    result, taken = dict[str, list[Any]](), dict[str, str]()
    for usual in NAMES:
        names = [name for name in columns if chosen.get(name) == usual]
        names = names or [name for name in columns if _usual(name) == usual and name not in chosen]
        if len(names) > 1:
            raise ValueError(f"columns {', '.join(names)} are all a {usual}: give --columns={names[0]}:{usual} for one")
        if names:
            result[usual], taken[usual] = columns[names[0]], names[0]
    needed = [name for name in needed if name != "loss" or "accuracy" not in taken]
    for name in (*needed, *(size for size in AXES if size in target)):
        if name not in result:
            raise ValueError(
                f"{table} has no column {name} (or {', '.join(NAMES[name])}), it has {', '.join(columns)}: give "
                f"--columns=COLUMN:{name}"
            )
    # The law does not read the others: it names them where two rows differ in them alone.
    result |= {name: values for name, values in columns.items() if name not in {*taken.values(), *result}}
    for size, others in INSTEAD.items():
        if size in target and size in result:
            result = {name: values for name, values in result.items() if name not in others}
    for name in CONDITIONS:
        here = [i for i, value in enumerate(result.get(name, [])) if name in target and _same(value, target[name])]
        if here:
            result = {column: [of_column[i] for i in here] for column, of_column in result.items()}
    return result, {usual: name for usual, name in taken.items() if usual in result}

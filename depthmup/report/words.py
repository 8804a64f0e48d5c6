"""What a sweep has found, in words: a short table, a sentence for each optimizer, what decides, and what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from depthmup.fit import Drift, Transfer, Verdict
from depthmup.fit.verdict import NOT, NOTHING, TRANSFERS, UNDECIDED
from depthmup.report.curves import TransferCurve
from depthmup.settings import value_of
from depthmup.trials.adaptive import WIDER
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.model_study import ModelStudy
from depthmup.trials.plan import has_grid
from depthmup.trials.study import Study

PROGRAMS = "depthmup", "python main.py"  # what a command may begin with
MEANINGS: dict[Verdict, str] = {
    TRANSFERS: "at every size the tuned value surely costs less than a value of half the best one would: use it",
    NOT: "at some size the tuned value surely costs more than a value of half the best one would, or it diverges there",
    UNDECIDED: "the trials allow neither answer: more of them would decide",
    NOTHING: "fewer than two sizes have a training that is surely better than chance: train longer, or widen the grid",
}
NONE = "-"  # the cell of a value that does not exist
SAME = 0.05  # octaves, below which a best value has not moved
ALONE, OF_SWEEP = ("yes", "tables", "dry_run"), ("launcher", "shard")  # flags of a sweep, without and with a value
SHOWN = 3  # most parameterizations that a sentence names for each verdict
Cells = dict[str, str]  # a row of a table: title of the column -> text
Block = Sequence[TransferCurve]  # curves of one axis and one hyperparameter


class Part(NamedTuple):
    """A piece of a sentence. kind: the verdict of which it is the word; "code" for what is to be typed; "" for text."""

    text: str
    kind: Verdict | Literal["code", ""] = ""


def program(command: str) -> str:
    """How the commands of a page begin; from Python as the module, which is there wherever the package is."""
    return next((program for program in PROGRAMS if command.startswith(f"{program} ")), "python -m depthmup")


def blocks(curves: Sequence[TransferCurve]) -> list[Block]:
    """The curves of each axis and hyperparameter."""
    kinds = dict.fromkeys((c.axis, c.hyperparameter) for c in curves)
    return [[c for c in curves if (c.axis, c.hyperparameter) == kind] for kind in kinds]


def rate(value: float | None, without: str = "none") -> str:
    """A learning rate, or another hyperparameter, with three digits; without: if there is none."""
    return without if value is None else f"{value:.3g}"


def text(rows: Sequence[Cells]) -> str:
    """A table as text, with columns as wide as they must be."""
    titles = dict.fromkeys(title for row in rows for title in row)
    cells = [dict(zip(titles, titles, strict=True)), *rows]
    wide = {title: max(len(row.get(title, NONE)) for row in cells) for title in titles}
    return "\n".join("  ".join(f"{row.get(t, NONE):{wide[t]}}" for t in titles).rstrip() for row in cells)


def drift(of: Drift | None) -> str:
    return f"{of.octaves_per_doubling:+.2f} [{of.low:+.2f}, {of.high:+.2f}]" if of else NONE


def price(found: Transfer) -> str:
    """What the tuned value costs, in a few words."""
    if found.verdict != NOT or found.tuned is None:
        return f"costs at most {found.cost}" if found.cost else ""
    words = found.reason.removeprefix(f"{found.tuned:.3g} of {found.axis} {found.values[0]:g} ")
    head, unit, _ = words.partition(" (1/")  # what a margin is stands in the report once
    return head if unit else words


def moved(found: Transfer) -> str:
    """The best value of the largest size against the tuned one."""
    best = found.optimal_lr[-1]
    if best is None or found.tuned is None:
        return NONE
    octaves = math.log2(best / found.tuned)
    if abs(octaves) < SAME:
        return "stays"
    return f"{'rises' if octaves > 0 else 'falls'} {2 ** abs(octaves):.2g}x"


def table(block: Block) -> list[Cells]:
    """A row for each curve."""
    first = block[0].result
    return [
        {
            span(block): f"{c.optimizer} {c.name}",
            f"tuned at {first.values[0]:g}": rate(c.result.tuned),
            f"best at {first.values[-1]:g}": rate(c.result.optimal_lr[-1]),
            "best value": moved(c.result),
            "tuned value": price(c.result) or NONE,
            "verdict": c.result.verdict,
        }
        for c in block
    ]


def span(block: Block) -> str:
    """The axis with its ends."""
    c = block[0]
    other = "" if c.hyperparameter == "learning_rate" else f"{c.hyperparameter.replace('_', ' ')}, "
    return f"{other}{c.axis.replace('_', ' ')} {c.result.values[0]:g} to {c.result.values[-1]:g}"


def answers(curves: Sequence[TransferCurve]) -> str:
    """What a sweep has found, as text: a short table, what would decide the undecided, the learning rates to use."""
    lines = []
    for block in blocks(curves):
        lines.append(text(table(block)))
        undecided = [c for c in block if c.result.verdict in (UNDECIDED, NOTHING)]
        lines += [f"{c.optimizer} {c.name}: {c.result.verdict}: {c.result.reason}" for c in undecided]
        lines.append("")
    if any(c.hyperparameter == "learning_rate" for c in curves):
        found = "; ".join(
            f"{rate(c.result.tuned)} for {c.optimizer} under {c.name} (the best of {c.axis} {c.result.values[0]:g})"
            for c in transferring(curves)
        )
        lines.append(
            f"learning rate to use at larger sizes: {found or 'none is known to be right there: tune at each size'}"
        )
    return "\n".join(lines)


def transferring(curves: Sequence[TransferCurve]) -> list[TransferCurve]:
    """The first curve of each optimizer, parameterization and variant whose learning rate transfers on all axes."""
    own: dict[tuple[str, str], list[TransferCurve]] = {}
    for c in curves:
        if c.hyperparameter == "learning_rate":
            own.setdefault((c.optimizer, c.name), []).append(c)
    return [of_name[0] for of_name in own.values() if all(c.result.verdict == TRANSFERS for c in of_name)]


def sentences(block: Block, study: Study | None, command: str) -> dict[str, list[Part]]:
    """{optimizer: what is known under each parameterization}. study, command: as in `decides`."""
    result: dict[str, list[Part]] = {}
    for optimizer in dict.fromkeys(c.optimizer for c in block):
        parts = result.setdefault(optimizer, [])
        for verdict in MEANINGS:
            alike: dict[str, list[TransferCurve]] = {}
            for c in block:
                if (c.optimizer, c.result.verdict) == (optimizer, verdict):
                    alike.setdefault(_clause(c), []).append(c)
            for clause, own in list(alike.items())[:SHOWN]:
                before, _, after = clause.partition("|")
                parts += [Part(f"Under {_listed([c.name for c in own])} {before}"), Part(verdict, verdict), Part(after)]
                if text := decides(own, study, command) if study else "":
                    parts += [Part(" ("), Part(text, "code"), Part(" trains what would decide)")]
                parts.append(Part(". "))
            if more := sum(map(len, list(alike.values())[SHOWN:])):
                parts += [Part(f"{more} more in the table: "), Part(verdict, verdict), Part(". ")]
    return result


def _clause(c: TransferCurve) -> str:
    """What is said of a curve before and after its verdict, which stands at |."""
    found, name = c.result, c.hyperparameter.replace("_", " ")
    axis, first, last = c.axis.replace("_", " "), f"{found.values[0]:g}", f"{found.values[-1]:g}"
    if found.verdict == TRANSFERS:
        return f"the {name} {rate(found.tuned)} tuned at {axis} {first} {price(found)} up to {axis} {last}: it |"
    if found.verdict == NOT:
        move = "" if moved(found) == NONE else f"the best {name} {moved(found)}, and "
        return f"{move}the tuned {rate(found.tuned)} {price(found)}: it |"
    if found.verdict == UNDECIDED:
        return f"the tuned {rate(found.tuned)} {price(found)}: |" if price(found) else "|"
    return f"|: {found.reason}"


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def decides(curves: Sequence[TransferCurve], study: Study, command: str) -> str:
    """What is to be added to the command, or to the call, so that the undecided of these curves are decided; "" if
    nothing is known, and for a table, whose trials were trained elsewhere.

    command: what trained the sweep.
    """
    changes = _changes([c for c in curves if c.result.verdict == UNDECIDED], study)
    if isinstance(study, ModelStudy):
        return ", ".join(_argument(key, value, study) for key, value in changes.items())
    if not isinstance(study, ConfigStudy):
        return ""
    if command.startswith(PROGRAMS):
        return shlex.join(f"--config.sweep.{key}={value}" for key, value in changes.items())
    return "; ".join(f"config.sweep.{key} = {value!r}" for key, value in changes.items())


def _changes(undecided: Sequence[TransferCurve], study: Study) -> dict[str, Any]:
    """{key of the sweep's settings: its new value}"""
    sweep, wider = study.sweep, dict[str, set[str]]()
    needs = [(c, need) for c in undecided for need in c.result.needs]
    for c, need in needs:
        if need.kind in ("lower", "higher") and c.hyperparameter == "learning_rate" and has_grid(study):
            wider.setdefault(c.optimizer, set()).add(need.kind)
    seeds = [need.seeds for _, need in needs if need.kind in ("seeds", "finer")]
    if not seeds and not wider:
        return {}
    most = sweep.max_seeds * (2 if sweep.until == "decided" else 1)
    while most < max(seeds, default=0):
        most *= 2
    more = {"max_seeds": most} if seeds and most > sweep.max_seeds else {}
    if sweep.until == "planned":  # which adds seeds and rates by itself
        return {**({"seeds": 3} if sweep.seeds == 1 else {}), "until": "decided", **more}
    ends = {optimizer: sweep.log2_learning_rates[optimizer] for optimizer in wider}
    return more | {
        f"log2_learning_rates.{optimizer}": (low - WIDER * ("lower" in of), high + WIDER * ("higher" in of))
        for (optimizer, of), (low, high) in zip(wider.items(), ends.values(), strict=True)
    }


def conclusion(curves: Sequence[TransferCurve], study: Study, command: str = "") -> str:
    """The answers, then what to do next; "" without curves. command: what trained the sweep."""
    return "\n".join(filter(None, (answers(curves), next_steps(curves, study, command)))) if curves else ""


def next_steps(curves: Sequence[TransferCurve], study: Study, command: str) -> str:
    """What to do next: decide what is undecided, train the large network, or tune at each size."""
    undecided = [c for c in curves if c.result.verdict == UNDECIDED]
    lines = []
    if text := decides(undecided, study, command):
        lines += ["Next: decide what is undecided", f"  {_changed(command, 'sweep', text) or text}"]
    if grown := _grown(curves, study, command):
        lines += ["Next: train the large network with what was tuned", *(f"  {line}" for line in grown)]
    if not undecided and not transferring(curves):
        lines.append("Next: take another parameterization (docs/guide/choose.md), or tune at each size")
    return "\n".join(lines)


def _grown(curves: Sequence[TransferCurve], study: Study, command: str) -> list[str]:
    """For each optimizer the command, or the call, with the best parameterization whose learning rate transfers."""
    best: dict[str, TransferCurve] = {}
    for c in transferring(curves):
        if c.axis in ("depth", "width") and not c.variant:
            best[c.optimizer] = min(best.get(c.optimizer, c), c, key=lambda c: c.result.optima[-1].loss)
    width, depth = max([study.width, *study.sweep.widths]), max([study.depth, *study.sweep.depths])
    lines = []
    for optimizer, c in best.items():
        if isinstance(study, ModelStudy) and study.training and not study.training.optimizers[optimizer]:
            under = "" if c.parameterization == study.sweep.parameterizations[0] else f'.under("{c.parameterization}")'
            lines.append(f'm{under}.at({width}, {depth}).optimizer("{optimizer}", {rate(c.result.tuned)})')
        elif isinstance(study, ConfigStudy) and command.startswith(PROGRAMS):
            own = {"optimizer.name": optimizer, "parameterization.name": c.parameterization}
            flags = [f"--config.{key}={value}" for key, value in own.items() if value_of(study.settings, key) != value]
            lines.append(_changed(command, "grow", shlex.join([*flags, f"--width={width}", f"--depth={depth}"])))
    return lines


def _changed(command: str, verb: str, flags: str) -> str:
    """The command of a sweep with another verb and with these flags, which take the place of those that it has. What
    was swept is in the workdir: no other verb is told it again."""
    if not command.startswith(PROGRAMS):
        return ""
    new = shlex.split(flags)
    dropped = {word.partition("=")[0] for word in new} | {f"--{flag}" for flag in (*ALONE, *OF_SWEEP)}
    words, kept = iter(shlex.split(command)), []
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag not in dropped and (verb == "sweep" or not flag.startswith("--config.sweep.")):
            kept.append(verb if word == "sweep" else word)
        elif not equals and flag.removeprefix("--") not in ALONE:
            next(words, None)  # --flag value
    return shlex.join([*kept, *new])


def _argument(key: str, value: Any, study: Study) -> str:
    """An argument of m.sweep."""
    if isinstance(value, tuple):
        low, high = value
        return f"learning_rates=2.0 ** numpy.arange({low:g}, {high:g} + .01, {1 / study.sweep.per_octave:.4g})"
    return f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"

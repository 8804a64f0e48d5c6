"""The result of a sweep in words: a short table, a sentence for each optimizer, what decides, and what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from depthmup.cli_flags import FLAGS, changed
from depthmup.fit import Drift, Prediction, Transfer, Verdict
from depthmup.fit.table import grouped_by
from depthmup.fit.thresholds import MARGIN
from depthmup.fit.transfer import margin_words
from depthmup.fit.verdict import NOT, NOTHING, TRANSFERS, UNDECIDED
from depthmup.settings import LEARNING_RATE, column, flat, value_of
from depthmup.trials.adaptive import WIDER
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.model_study import ModelStudy
from depthmup.trials.plan import has_grid
from depthmup.trials.study import Size, Study
from depthmup.trials.verdicts import TransferCurve

PROGRAMS = "depthmup", "python main.py"  # what a command may begin with
BELOW = f"a value of {2**-MARGIN:.2g} times the best one"  # what the margin allows
MEANINGS: dict[Verdict, str] = {
    TRANSFERS: f"at every size the tuned value surely costs less than {BELOW} would: use it",
    NOT: f"at some size the tuned value surely costs more than {BELOW} would, or it diverges there",
    UNDECIDED: "the trials allow neither answer: more of them would decide",
    NOTHING: "fewer than two sizes have a training that is surely better than chance: train longer, or widen the grid",
}
NONE = "-"  # the cell of a value that does not exist
SAME = 0.05  # octaves, below which a best value has not moved
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
    return list(grouped_by(curves, lambda c: (c.axis, c.hyperparameter)).values())


def rate(value: float | None, without: str = "none") -> str:
    """A learning rate, or another hyperparameter, with three digits; without: if there is none."""
    return without if value is None else f"{value:.3g}"


def table_text(rows: Sequence[Cells]) -> str:
    """A table as text, with columns as wide as they must be."""
    titles = {title: title for row in rows for title in row}
    widths = {title: max(len(row.get(title, NONE)) for row in (titles, *rows)) for title in titles}
    return "\n".join("  ".join(f"{row.get(t, NONE):{widths[t]}}" for t in titles).rstrip() for row in (titles, *rows))


def drift(fitted: Drift | None) -> str:
    """Octaves for each doubling of the size, with their 95% interval."""
    return f"{fitted.octaves_per_doubling:+.2f} [{fitted.low:+.2f}, {fitted.high:+.2f}]" if fitted else NONE


def price(result: Transfer) -> str:
    """The cost of the tuned value in a few words; "" if it is not known."""
    if result.verdict != NOT or result.tuned is None:
        return f"costs at most {result.cost}" if result.cost else ""
    reason = result.reason.removeprefix(f"{result.tuned:.3g} of {result.axis} {result.values[0]:g} ")
    return reason.partition("; margin ")[0]


def moved(result: Transfer) -> str:
    """How the best value of the largest size differs from the tuned one: "stays", "rises 2x" or "falls 2x"."""
    best = result.optimal_lr[-1]
    if best is None or result.tuned is None:
        return NONE
    octaves = math.log2(best / result.tuned)
    if abs(octaves) < SAME:
        return "stays"
    return f"{'rises' if octaves > 0 else 'falls'} {2 ** abs(octaves):.2g}x"


def best_values(c: TransferCurve) -> Cells:
    """{size: its best value, with * if it is at the edge of the grid}"""
    pairs = zip(c.result.values, c.result.optima, strict=True)
    return {f"{size:g}": rate(o.learning_rate) + "*" * o.at_edge for size, o in pairs}


def table(block: Block) -> list[Cells]:
    """A row for each curve."""
    first = block[0].result
    return [
        {
            span(block): c.title,
            f"tuned at {first.values[0]:g}": rate(c.result.tuned),
            f"best at {first.values[-1]:g}": rate(c.result.optimal_lr[-1]),
            "best value": moved(c.result),
            "tuned value": price(c.result) or NONE,
            "verdict": c.result.verdict,
        }
        for c in block
    ]


def span(block: Block) -> str:
    """The axis with its ends, after the name of a hyperparameter other than the learning rate."""
    c = block[0]
    other = "" if c.of_rate else f"{c.hyperparameter_name}, "
    return f"{other}{c.axis_name} {c.result.values[0]:g} to {c.result.values[-1]:g}"


def answers(curves: Sequence[TransferCurve]) -> str:
    """The result of a sweep as text: a short table, what would decide the undecided, the learning rates to use."""
    lines = []
    for block in blocks(curves):
        undecided = [c for c in block if c.result.verdict in (UNDECIDED, NOTHING)]
        reasons = [f"{c.title}: {c.result.verdict}: {c.result.reason}" for c in undecided]
        lines += [table_text(table(block)), *reasons, ""]
    if any(c.of_rate for c in curves):
        rates = "; ".join(
            f"{rate(c.result.tuned)} for {c.optimizer} under {c.name} (the best of {c.axis} {c.result.values[0]:g})"
            for c in transferring(curves)
        )
        rates = rates or "none is known to be right there: tune at each size"
        lines.append(f"learning rate to use at larger sizes: {rates}")
    return "\n".join(lines)


def bottom_line(curves: Sequence[TransferCurve]) -> list[str]:
    """The answer of a page, a line for each optimizer and parameterization whose rate transfers: which learning rate to
    use for which sizes, what it costs there at most, and the margin; or one for an optimizer of which none does."""
    rates = [c for c in curves if c.of_rate]
    lines = []
    for chosen in transferring(rates):
        parts = []
        for c in (c for c in rates if c.title == chosen.title):
            tuned = "" if c.result.tuned == chosen.result.tuned else f" (the best there is {rate(c.result.tuned)})"
            allowed = ", ".join(filter(None, (f"costs at most {c.result.cost}", margin_words(c.result))))
            parts.append(f"up to {c.axis_name} {c.result.values[-1]:g}{tuned} it {allowed}")
        lines.append(f"Use {rate(chosen.result.tuned)} for {chosen.optimizer} under {chosen.name}: {'; '.join(parts)}.")
    known = {c.optimizer for c in transferring(rates)}
    without = [name for name in dict.fromkeys(c.optimizer for c in rates) if name not in known]
    return [*lines, *(f"For {name} no learning rate is known to be right at all larger sizes." for name in without)]


def transferring(curves: Sequence[TransferCurve]) -> list[TransferCurve]:
    """The first curve of each optimizer, parameterization and variant whose learning rate transfers on all axes."""
    groups = grouped_by([c for c in curves if c.of_rate], lambda c: c.title).values()
    return [group[0] for group in groups if all(c.result.verdict == TRANSFERS for c in group)]


def sentences(block: Block, study: Study | None, command: str) -> dict[str, list[Part]]:
    """{optimizer: sentences on its parameterizations, a sentence for those of one clause}

    study, command: as in `decides`; without a study no sentence says what would decide.
    """
    result: dict[str, list[Part]] = {}
    for optimizer, curves in grouped_by(block, lambda c: c.optimizer).items():
        parts = result[optimizer] = []
        for verdict in MEANINGS:
            alike = grouped_by([c for c in curves if c.result.verdict == verdict], _clause)
            for (before, after), group in list(alike.items())[:SHOWN]:
                names = _listed([c.name for c in group])
                parts += [Part(f"Under {names} {before}"), Part(verdict, verdict), Part(after)]
                if change := decides(group, study, command) if study else "":
                    parts += [Part(" ("), Part(change, "code"), Part(" trains what would decide)")]
                parts.append(Part(". "))
            if more := sum(map(len, list(alike.values())[SHOWN:])):
                parts += [Part(f"{more} more in the table: "), Part(verdict, verdict), Part(". ")]
    return result


def _clause(c: TransferCurve) -> tuple[str, str]:
    """The text of a sentence before and after the verdict of a curve."""
    result, name, cost = c.result, c.hyperparameter_name, price(c.result)
    first, last = f"{c.axis_name} {result.values[0]:g}", f"{c.axis_name} {result.values[-1]:g}"
    if result.verdict == TRANSFERS:
        return f"the {name} {rate(result.tuned)} tuned at {first} {cost} up to {last}: it ", ""
    if result.verdict == NOT:
        move = "" if moved(result) == NONE else f"the best {name} {moved(result)}, and "
        return f"{move}the tuned {rate(result.tuned)} {cost}: it ", ""
    if result.verdict == UNDECIDED:
        return f"the tuned {rate(result.tuned)} {cost}: " if cost else "", ""
    return "", f": {result.reason}"


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def decides(curves: Sequence[TransferCurve], study: Study, command: str) -> str:
    """The flags of the command, or the arguments of the call, that decide the undecided ones of these curves; "" if
    nothing is known, and for a table, whose trials were trained elsewhere.

    command: the command that trained the sweep.
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
    """{key of the sweep's settings: its new value} that decide these curves; {} if their needs name none."""
    sweep, wider = study.sweep, dict[str, set[str]]()
    needs = [(c, need) for c in undecided for need in c.result.needs]
    for c, need in needs:
        if need.kind in ("lower", "higher") and c.of_rate and has_grid(study):
            wider.setdefault(c.optimizer, set()).add(need.kind)
    seeds = [need.seeds for _, need in needs if need.kind in ("seeds", "finer")]
    if not seeds and not wider:
        return {}
    most = sweep.max_seeds * (2 if sweep.until == "decided" else 1)
    while most < max(seeds, default=0):
        most *= 2
    more: dict[str, Any] = {"max_seeds": most} if seeds and most > sweep.max_seeds else {}
    if sweep.until == "planned":  # a sweep until its verdicts are decided adds seeds and rates by itself
        return {**({"seeds": 3} if sweep.seeds == 1 else {}), "until": "decided", **more}
    for optimizer, kinds in wider.items():
        low, high = sweep.log2_learning_rates[optimizer]
        ends = low - WIDER * ("lower" in kinds), high + WIDER * ("higher" in kinds)
        more[f"log2_learning_rates.{optimizer}"] = ends
    return more


def conclusion(curves: Sequence[TransferCurve], study: Study, command: str = "") -> str:
    """The answers, then what to do next; "" without curves. command: the command that trained the sweep."""
    return "\n".join(filter(None, (answers(curves), next_steps(curves, study, command)))) if curves else ""


def next_steps(curves: Sequence[TransferCurve], study: Study, command: str) -> str:
    """What to do next: decide what is undecided, train the large network, or tune at each size."""
    undecided = [c for c in curves if c.result.verdict == UNDECIDED]
    lines = []
    if change := decides(undecided, study, command):
        lines += ["Next: decide what is undecided", f"  {_changed(command, 'sweep', change) or change}"]
    if grown := _grown(curves, study, command):
        lines += ["Next: train the large network with what was tuned", *(f"  {line}" for line in grown)]
    if not undecided and not transferring(curves):
        lines.append("Next: take another parameterization (docs/guide/choose.md), or tune at each size")
    return "\n".join(lines)


def train_target(study: Study, p: Prediction, values: Mapping[str, float], command: str) -> str:
    """The command, or the call, that trains the target of a study. values: {key: value} of what was tuned."""
    assert study.target
    size, optimizer = Size(**study.target), study.sweep.optimizers[0]
    if not isinstance(study, ConfigStudy):
        others = [f", {column(key)}={rate(value)}" for key, value in values.items() if key != LEARNING_RATE]
        return (
            f'm.at({size.width}, {size.depth}).optimizer("{optimizer}", {rate(values[LEARNING_RATE])}{"".join(others)})'
        )
    tuned, target = (
        flat(study.settings),
        flat(study.point_at(size, optimizer, study.sweep.parameterizations[0]).settings),
    )
    changes = {key: value for key, value in target.items() if value != tuned[key]}
    flags = {f"config.{key}": value for key, value in changes.items()}
    flags |= {f"config.{key}": f"{value:.4g}" for key, value in values.items()}
    flags["expect"] = f"{p.loss_low:.4g},{p.loss_high:.4g}"
    replaced = {"workdir", *flags, *(name for name, flag in FLAGS.items() if "tune" in flag.verbs)}
    return changed(command, "tune", "train", replaced.__contains__, [f"--{flag}={v}" for flag, v in flags.items()])


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
            names = {"optimizer.name": optimizer, "parameterization.name": c.parameterization}
            flags = [f"--config.{key}={name}" for key, name in names.items() if value_of(study.settings, key) != name]
            lines.append(_changed(command, "grow", shlex.join([*flags, f"--width={width}", f"--depth={depth}"])))
    return lines


def _changed(command: str, verb: str, flags: str) -> str:
    """The command of a sweep with this verb and these flags, which replace the flags of the same names; "" for a call
    from Python. Another verb than sweep gets no flag of the sweep's settings: it reads them from the workdir."""
    if not command.startswith(PROGRAMS):
        return ""
    new = shlex.split(flags)
    replaced = {word.partition("=")[0].removeprefix("--") for word in new}
    replaced |= {name for name, flag in FLAGS.items() if "sweep" in flag.verbs}

    def drops(name: str) -> bool:
        return name in replaced or (verb != "sweep" and name.startswith("config.sweep."))

    return changed(command, "sweep", verb, drops, new)


def _argument(key: str, value: Any, study: Study) -> str:
    """An argument of m.sweep."""
    if isinstance(value, tuple):
        low, high = value
        return f"learning_rates=2.0 ** numpy.arange({low:g}, {high:g} + .01, {1 / study.sweep.per_octave:.4g})"
    return f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"

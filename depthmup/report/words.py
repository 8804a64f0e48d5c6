"""The result of a sweep in words: what transfers, which rate to use, what would decide the rest, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from depthmup.cli_flags import PROGRAMS, changed
from depthmup.fit import Verdict
from depthmup.fit.table import grouped_by
from depthmup.fit.transfer import margin_words
from depthmup.fit.verdict import NOT, NOTHING, TRANSFERS, UNDECIDED, VERDICTS
from depthmup.report.curves import transferring
from depthmup.report.grow import commands_to_grow
from depthmup.report.tables import Block, blocks, table, table_text
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.study import Study
from depthmup.trials.until import deciding
from depthmup.trials.verdicts import TransferCurve

SHOWN = 3  # most parameterizations that a sentence names for each verdict


class Part(NamedTuple):
    """A piece of a sentence. kind: the verdict of which it is the word; "code" for what is to be typed; "" for text."""

    text: str
    kind: Verdict | Literal["code", ""] = ""


def answers(curves: Sequence[TransferCurve]) -> str:
    """The result of a sweep as text: a short table, what would decide the undecided, the learning rates to use."""
    lines = []
    for block in blocks(curves):
        undecided = [c for c in block if c.result.verdict in (UNDECIDED, NOTHING)]
        reasons = [f"{c.title}: {c.result.verdict}: {c.result.reason}" for c in undecided]
        lines += [table_text(table(block)), *reasons, ""]
    if any(c.of_rate for c in curves):
        rates = "; ".join(
            f"{c.result.tuned:.3g} for {c.optimizer} under {c.name} (the best of {c.axis} {c.result.values[0]:g})"
            for c in transferring(curves)
        )
        rates = rates or "none is known to be right there: tune at each size"
        lines.append(f"learning rate to use at larger sizes: {rates}")
    return "\n".join(lines)


def news(curves: Sequence[TransferCurve], before: Sequence[TransferCurve]) -> str:
    """The curves whose verdict differs from the one before, such as "depth 2 to 4: sgd sp does not transfer"; a curve
    without one before counts as undecided."""
    known = {str(c): _decided(c) for c in before}
    changed = [c for c in curves if _decided(c) != known.get(str(c), UNDECIDED)]
    by_sizes = grouped_by(changed, lambda c: c.span)
    return "; ".join(
        f"{of}: {', '.join(f'{c.title} {c.result.verdict}' for c in some)}" for of, some in by_sizes.items()
    )


def _decided(c: TransferCurve) -> Verdict:
    return c.result.verdict if c.result.verdict in (TRANSFERS, NOT) else UNDECIDED


def bottom_line(curves: Sequence[TransferCurve]) -> list[str]:
    """The answer of a page, a line for each optimizer and parameterization whose rate transfers: which learning rate to
    use for which sizes, what it costs there at most, and the margin; or one for an optimizer of which none does."""
    rates = [c for c in curves if c.of_rate]
    lines = []
    for chosen in transferring(rates):
        parts = []
        for c in (c for c in rates if c.title == chosen.title):
            tuned = "" if c.result.tuned == chosen.result.tuned else f" (the best there is {c.result.tuned:.3g})"
            allowed = ", ".join(filter(None, (f"costs at most {c.result.cost}", margin_words(c.result))))
            parts.append(f"up to {c.axis_name} {c.result.values[-1]:g}{tuned} it {allowed}")
        lines.append(f"Use {chosen.result.tuned:.3g} for {chosen.optimizer} under {chosen.name}: {'; '.join(parts)}.")
    known = {c.optimizer for c in transferring(rates)}
    without = [name for name in dict.fromkeys(c.optimizer for c in rates) if name not in known]
    return [*lines, *(f"For {name} no learning rate is known to be right at all larger sizes." for name in without)]


def sentences(block: Block, study: Study | None, command: str) -> dict[str, list[Part]]:
    """{optimizer: sentences on its parameterizations, a sentence for those of one clause}

    study, command: as in `decides`; without a study no sentence says what would decide.
    """
    result: dict[str, list[Part]] = {}
    for optimizer, curves in grouped_by(block, lambda c: c.optimizer).items():
        parts = result[optimizer] = []
        for verdict in VERDICTS:
            alike = grouped_by([c for c in curves if c.result.verdict == verdict], _clause)
            for (before, after), group in list(alike.items())[:SHOWN]:
                *others, last = (c.name for c in group)
                names = f"{', '.join(others)} and {last}" if others else last
                parts += [Part(f"Under {names} {before}"), Part(verdict, verdict), Part(after)]
                if change := decides(group, study, command) if study else "":
                    parts += [Part(" ("), Part(change, "code"), Part(" trains what would decide)")]
                parts.append(Part(". "))
            if more := sum(map(len, list(alike.values())[SHOWN:])):
                parts += [Part(f"{more} more in the table: "), Part(verdict, verdict), Part(". ")]
    return result


def _clause(c: TransferCurve) -> tuple[str, str]:
    """The text of a sentence before and after the verdict of a curve."""
    result, name = c.result, c.hyperparameter_name
    first, last = (f"{c.axis_name} {size:g}" for size in (result.values[0], result.values[-1]))
    if result.verdict == TRANSFERS:
        return f"the {name} {result.tuned:.3g} tuned at {first} {result.price} up to {last}: it ", ""
    if result.verdict == NOT:
        move = f"the best {name} {result.moved}, and " if result.moved else ""
        return f"{move}the tuned {result.tuned:.3g} {result.price}: it ", ""
    if result.verdict == UNDECIDED:
        return f"the tuned {result.tuned:.3g} {result.price}: " if result.price else "", ""
    return "", f": {result.reason}"


def decides(curves: Sequence[TransferCurve], study: Study, command: str) -> str:
    """The flags of the command, or the arguments of the call, that decide the undecided ones of these curves; "" if
    nothing is known. command: the command that trained the sweep."""
    changes = deciding([c for c in curves if c.result.verdict == UNDECIDED], study)
    return study.in_words(changes, flags=command.startswith(PROGRAMS)) if changes else ""


def conclusion(curves: Sequence[TransferCurve], study: Study, command: str = "") -> str:
    """The answers, then what to do next; "" without curves. command: the command that trained the sweep."""
    return "\n".join(filter(None, (answers(curves), next_steps(curves, study, command)))) if curves else ""


def next_steps(curves: Sequence[TransferCurve], study: Study, command: str) -> str:
    """What to do next: decide what is undecided, train the large network, or tune at each size."""
    undecided = [c for c in curves if c.result.verdict == UNDECIDED]
    lines = []
    if change := decides(undecided, study, command):
        if isinstance(study, ConfigStudy) and command.startswith(PROGRAMS):
            flags = {f"config.sweep.{key}": value for key, value in deciding(undecided, study).items()}
            change = changed(command, "sweep", "sweep", flags)
        lines += ["Next: decide what is undecided", f"  {change}"]
    if commands := commands_to_grow(curves, study, command):
        lines += ["Next: train the large network with what was tuned", *(f"  {command}" for command in commands)]
    if not undecided and not transferring(curves):
        lines.append("Next: take another parameterization (docs/guide/choose.md), or tune at each size")
    return "\n".join(lines)

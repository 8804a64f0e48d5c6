"""What was predicted before a training, and what came out: the table of docs/predictions.md.

    python -m experiments.predictions     # prints it
    python -m experiments.documents       # writes it

docs/results/predictions.toml has every prediction that was ever committed; none is taken out. `predicted` is quoted
from `module` as it was at `commit`; `rows` is the first commit with trainings that answer it, filled in when they are
there. A quantity (experiments/quantities.py) of the committed rows is compared with `band`, or is a verdict on curves
that were predicted to transfer. Where no rows are left, `came_out` and `answer` are those of `source`.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from experiments.output import AGREES, DISAGREES, UNDECIDED, Interval, markdown
from experiments.published import RESULTS
from experiments.quantities import QUANTITIES

FILE = RESULTS / "predictions.toml"
Answer = Literal["hit", "missed", "undecided", "not trained"]
OF_VERDICT = {AGREES: "surely hit", DISAGREES: "surely missed", UNDECIDED: "undecided"}


class Prediction(NamedTuple):
    """An entry of the file. read_as: the curve, and what the table takes words without a number for. of: of what the
    quantity is. after_looking: it, or the rule that judges it, was chosen with the rows known. note: on that."""

    id: str
    experiment: str
    predicted: str
    module: str
    commit: str
    date: str
    rows: str = ""
    read_as: str = ""
    quantity: str = ""
    of: str = ""
    band: Sequence[float] = ()
    came_out: str = ""
    answer: str = ""
    source: str = ""
    after_looking: bool = False
    note: str = ""


def read() -> list[Prediction]:
    return [Prediction(**entry) for entry in tomllib.loads(FILE.read_text())["prediction"]]


def answer(value: Interval, band: Sequence[float]) -> str:
    """Hit if the value lies in the band, else missed; surely, if its whole 95% interval says the same."""
    low, high = band
    if math.isnan(value.value):
        return "undecided"
    if low <= value.value <= high:
        return "surely hit" if low <= value.low and value.high <= high else "hit"
    return "surely missed" if value.high < low or value.low > high else "missed"


def outcome(p: Prediction) -> tuple[str, str]:
    """(what came out, whether that is a hit)"""
    if not p.rows:
        return "-", "not trained"
    if not p.quantity:
        return f"{p.came_out} ({p.source})", p.answer
    compute, form, unit = QUANTITIES[p.quantity]
    value = compute(p.of)
    if not isinstance(value, Interval):
        words, verdict = value
        return words, OF_VERDICT[verdict]
    if math.isnan(value.value):
        return "not known", "undecided"
    return f"{value.value:{form}}{unit}" if math.isnan(value.low) else value.text(form, unit), answer(value, p.band)


def written(p: Prediction) -> str:
    """The commit of the prediction, and whether the rows were known."""
    if not p.rows:
        return p.commit
    if not p.after_looking:
        return p.commit + (f"; {p.note}" if p.note else "")
    return f"{p.commit}, **after looking** at {p.rows}" + (f": {p.note}" if p.note else "")


def counts(answers: Sequence[str]) -> str:
    """Such as "2 hit (1 surely), 1 missed (0 surely), 0 undecided"."""
    words = []
    for name in get_args(Answer):
        surely, known = answers.count(f"surely {name}"), answers.count(name)
        words.append(f"{surely + known} {name}" + (f" ({surely} surely)" if name in ("hit", "missed") else ""))
    return ", ".join(words)


@functools.cache
def table() -> str:
    """How often a prediction was right, then a row for each. A cell that would repeat the one above it is empty."""
    rows, answers = [], dict[bool, list[str]]({False: [], True: []})
    above = Prediction("", "", "", "", "", "")
    for p in read():
        same = above.experiment == p.experiment
        again = same and above.predicted == p.predicted and bool(p.read_as)
        came_out, hit = outcome(p)
        answers[p.after_looking].append(hit)
        quoted = " ".join(filter(None, ("" if again else p.predicted, f"({p.read_as})" if p.read_as else "")))
        when = "" if same and written(above) == written(p) else written(p)
        judged = f"**{hit}**" if "missed" in hit else hit
        shown = judged if came_out == "-" else f"{judged}: {came_out}"
        rows.append(("" if same else p.experiment, quoted, shown, when))
        above = p
    before, after = map(counts, answers.values())
    columns = ("experiment", "predicted", "came out", "written")
    summary = f"- Written before the rows: {before}.\n- Chosen after looking: {after}."
    return f"{summary}\n\n{markdown(columns, rows)}"


if __name__ == "__main__":
    print(table())

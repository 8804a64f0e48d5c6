"""A sweep that goes on until its verdicts are decided (sweep.until): more seeds and rates, only where they are needed.

When the plan is trained, all verdicts are asked for: the first look. Where one is undecided, the trials that it needs
follow, then the next look, up to as many as `verdicts.looks` allows. A look is at the plan and what the looks before it
asked for: rows of other trials change nothing, and what comes next is a pure function of settings and rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas

from depthmup.fit import Transfer
from depthmup.fit.curve import BANDWIDTH
from depthmup.trials.adaptive import WIDER, Lattice
from depthmup.trials.plan import by_size, combinations, has_grid, sizes, trial_count
from depthmup.trials.study import Row, Study, Trial
from depthmup.trials.verdicts import TransferCurve, looks, seed_stages, verdicts

NAMED = 6  # verdicts that a message names at most
Seeds = Mapping[Any, Mapping[float, int]]  # {size: {value of the hyperparameter: number of seeds}}


class Decision(NamedTuple):
    """How far a sweep is.

    asked: the trials that the last verdicts are about. more: those that must follow before the next verdicts and that
    have no row yet; none at the end. undecided: the last verdicts that are. spent: what kept the sweep from more; "".
    """

    asked: list[Trial]
    more: list[Trial]
    undecided: list[TransferCurve]
    spent: str = ""

    def __str__(self) -> str:
        names = [str(verdict) for verdict in self.undecided]
        rest = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
        return ", ".join([*names[:NAMED], *rest])


def needed(
    result: Transfer, seeds: Seeds, stages: Sequence[int], lattice: Lattice | None
) -> dict[tuple[Any, float], int]:
    """{(size, value): the number of seeds that it must have}, as far as there are fewer, to decide an open verdict.

    seeds: that there are. stages: the numbers of seeds that a value may have. lattice: None if only seeds may be added.
    """
    wanted: dict[tuple[Any, float], int] = {}

    def want(size: Any, values: Sequence[float], number: int) -> None:
        wanted.update(
            {(size, v): max(number, wanted.get((size, v), 0)) for v in values if seeds[size].get(v, 0) < number}
        )

    for need in result.needs:
        rates = lattice.more(need) if lattice and need.kind != "seeds" else []
        want(need.size, rates, need.seeds)
        if rates or need.kind in ("lower", "higher"):
            continue  # where the grid is as fine as it may be, seeds tell how often trainings fail
        near, first = _near(seeds[need.size], need.low, need.high), result.values[0]
        present = max((seeds[need.size][value] for value in near), default=0)
        number = next((stage for stage in stages if stage > present), stages[-1])
        want(need.size, near, number)
        if result.tuned is not None:
            want(first, _near(seeds[first], result.tuned, result.tuned), number)
    return wanted


def _near(values: Mapping[float, int], low: float, high: float) -> list[float]:
    """The values that a smoothed curve between low and high depends on."""
    reach = 2.0 ** (BANDWIDTH + 1e-6)
    return [value for value in values if low / reach <= value <= high * reach]


def decide(plan: Sequence[Trial], rows: Mapping[str, Row], study: Study) -> Decision:
    """How far the sweep is by these rows, which must have those of the plan; others than it asks for change nothing."""
    asked, limit, spent = {trial.key: trial for trial in plan}, len(plan) + study.sweep.max_trials, ""
    for left in reversed(range(looks(study))):
        table = pandas.DataFrame([rows[key] for key in asked])
        undecided = [verdict for verdict in verdicts(table, study) if verdict.result.verdict == "undecided"]
        more = {trial.key: trial for verdict in undecided for trial in _trials(verdict, asked, study)}
        if not undecided:
            break
        if not more:
            kinds = {need.kind for verdict in undecided for need in verdict.result.needs}
            reached = f"sweep.max_seeds = {study.sweep.max_seeds} is reached"
            spent = reached if kinds & {"seeds", "finer"} else "no more seeds or rates would decide"
        elif not left:
            spent = f"it has looked {looks(study)} times, as often as it may"
        elif len(asked) + len(more) > limit:
            spent = f"sweep.max_trials = {study.sweep.max_trials:,} would be passed"
        if spent:
            break
        in_order = sorted(more.values(), key=by_size)
        if missing := [trial for trial in in_order if trial.key not in rows]:
            return Decision(list(asked.values()), missing, undecided)
        asked |= {trial.key: trial for trial in in_order}
    return Decision(list(asked.values()), [], undecided, spent)


def _trials(verdict: TransferCurve, asked: Mapping[str, Trial], study: Study) -> Iterator[Trial]:
    """The trials that an undecided verdict needs and that were not asked for."""
    optimizer, lattice = verdict.optimizer, None
    if verdict.of_rate and has_grid(study):
        lattice = Lattice.of(study, optimizer)
    present: dict[Any, dict[float, list[Trial]]] = {}
    for size, value, key in verdict.trials[[verdict.axis, verdict.hyperparameter, "key"]].itertuples(index=False):
        present.setdefault(size, {}).setdefault(value, []).append(asked[key])
    seeds = {size: {value: len(trials) for value, trials in of_size.items()} for size, of_size in present.items()}
    for (size, value), number in needed(verdict.result, seeds, seed_stages(study), lattice).items():
        trained = present[size].get(value, [])
        (like, *_) = trained or next(iter(present[size].values()))
        rate = float(value) if verdict.of_rate else like.learning_rate
        yield from (Trial(like.point, rate, study.seed + seed) for seed in range(len(trained), number))


def most(study: Study) -> int:
    """How many trials may follow the plan at most."""
    if study.sweep.until == "planned":
        return 0
    planned, more = trial_count(study), 0
    if has_grid(study):  # a wider grid at both ends, and a midpoint at each look and axis
        more = 2 * WIDER * study.sweep.per_octave + (looks(study) - 1) * len(list(sizes(study)))
    whole = (planned // study.sweep.seeds + more * len(combinations(study))) * seed_stages(study)[-1]
    return min(study.sweep.max_trials, whole - (0 if study.sweep.adaptive else planned))


def deciding(undecided: Sequence[TransferCurve], study: Study) -> dict[str, Any]:
    """{key of the sweep's settings: its new value} that decide these curves; {} if their needs name none."""
    sweep, wider = study.sweep, dict[str, set[str]]()
    needs = [(c, need) for c in undecided for need in c.result.needs]
    for c, need in needs:
        if need.kind in ("lower", "higher") and c.of_rate and has_grid(study):
            wider.setdefault(c.optimizer, set()).add(need.kind)
    seeds = [need.seeds for _, need in needs if need.kind in ("seeds", "finer")]
    if not seeds and not wider:
        return {}
    most_seeds = sweep.max_seeds * (2 if sweep.until == "decided" else 1)
    while most_seeds < max(seeds, default=0):
        most_seeds *= 2
    more: dict[str, Any] = {"max_seeds": most_seeds} if seeds and most_seeds > sweep.max_seeds else {}
    if sweep.until == "planned":  # a sweep until its verdicts are decided adds seeds and rates by itself
        return {**({"seeds": 3} if sweep.seeds == 1 else {}), "until": "decided", **more}
    for optimizer, kinds in wider.items():
        low, high = sweep.log2_learning_rates[optimizer]
        ends = low - WIDER * ("lower" in kinds), high + WIDER * ("higher" in kinds)
        more[f"log2_learning_rates.{optimizer}"] = ends
    return more

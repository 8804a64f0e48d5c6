"""`m.tune(target=)`: trains the small sizes and rates that tell most of a large run for each second."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas

from depthmup import fit
from depthmup.batch_rules import Run
from depthmup.data.user_feed import Batches, of_size
from depthmup.fit import Prediction
from depthmup.fit.curve import POINTS
from depthmup.fit.law_rows import DIGITS, LEAST
from depthmup.interrupt import GOES_ON
from depthmup.names import POSITIVE, at_least_one, short, unknown
from depthmup.optim import family_of
from depthmup.report import page
from depthmup.report.curves import judge
from depthmup.report.large_run import SweepLaw, sweep_law
from depthmup.report.result import SweepResult
from depthmup.train.devices import trial_layout
from depthmup.train.model_task import Loss
from depthmup.train.stop import Stop, Stopped
from depthmup.trials.choices import Choice, Choices
from depthmup.trials.engine import train
from depthmup.trials.estimate import duration
from depthmup.trials.group import CACHE, OutOfMemory, compiled_in
from depthmup.trials.model_study import ModelStudy, SetupLike, Size
from depthmup.trials.plan import score
from depthmup.trials.progress import about
from depthmup.trials.seconds import Seconds, Timing
from depthmup.trials.store import GROUPS, load
from depthmup.trials.study import Row, Trial
from depthmup.tuning import GRIDS, study_of

TOLERANCE = 0.01
DOUBLINGS = 5  # of an axis of the lattice at most
SIZES = 100  # of the lattice that are candidates at once
THINNED = 300  # candidates for what more seconds are expected to bring
AT_ONCE = 8  # trainings in a group, where one is trained after another: a program is compiled for so many
LATE = 1.1  # of the budget: what takes longer is dropped
SLOWER = 0.5, 4.0  # ends of the factor by which seconds are corrected
GUESS = 2  # octaves to either side of a first guess
BESIDE = 1  # octaves to either side of the best rate, at the second size of an axis
OUTWARD = 10  # octaves from the first guess that the search for a rate that trains may go
NEAR = 2.5  # octaves from the rate that the law predicts for a size
HELPS = 0.02  # share of the cost by which what is left must be expected to bring it down
PER_PROGRAM = POINTS  # trainings that share what the compilation of their program costs
UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
CHOSEN = (  # arguments of `m.sweep` that a tune chooses itself
    "widths",
    "depths",
    "sizes",
    "fixed",
    "seeds",
    "max_seeds",
    "until",
    "adaptive",
    "learning_rates",
    "against",
    "shard",
)
clock = time.monotonic


def tune_target(
    setup: SetupLike,
    loss: Loss,
    batches: Batches,
    *,
    steps: int,
    target: Mapping[str, int],
    budget: str | float | None = None,
    tolerance: float = TOLERANCE,
    learning_rate: float | None = None,
    workdir: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> SweepResult:
    """`Setup.tune` with a target, which explains the arguments."""
    seconds = _budget(budget)
    POSITIVE.check("tolerance", tolerance)
    study, lattice = _planned(setup, loss, batches, steps, target, learning_rate, options)
    say = functools.partial(print, flush=True) if progress else lambda text: None
    with contextlib.ExitStack() as stack:
        folder = Path(workdir if workdir is not None else stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(compiled_in(folder / CACHE if study.sweep.cache else None))
        tuning = Tuning(study, lattice, seconds, tolerance, folder, say, stack.enter_context(Stop()))
        result = tuning.run()
        if workdir is None:
            note = "nothing is stored: workdir=DIR keeps the rows, and the same call goes on from there"
            return dataclasses.replace(result, workdir=None, note=f"{result.note}\n{note}")
        page.write(result.curves, result.rows, result.study, folder, "m.tune")
        return result


def _budget(budget: str | float | None) -> float:
    """Seconds. Raises ValueError for what is none."""
    if budget is None:
        return math.inf
    if isinstance(budget, str):
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]+)\s*", budget)
        if not match or match[2] not in UNITS:
            raise ValueError(
                f'budget must be such as "30min", "2h", "90s", or seconds as a number, got {short(budget)}'
            )
        budget = float(match[1]) * UNITS[match[2]]
    POSITIVE.check("budget", budget)
    return float(budget)


def _planned(
    setup: SetupLike,
    loss: Loss,
    batches: Batches,
    steps: int,
    target: Mapping[str, int],
    learning_rate: float | None,
    options: Mapping[str, Any],
) -> tuple[ModelStudy, list[Size]]:
    """(the study of the base, which has the target; the lattice). Raises ValueError for what cannot be tuned."""
    sizes = _checked(target, options)
    at_least_one("steps", steps)
    study = _study(setup, loss, batches, steps, sizes, learning_rate, options)
    base = Size(study.width, study.depth, study.about["batch_size"], steps)
    aim = Size(**{**base._asdict(), **sizes})
    for name, value, least in zip(Size._fields, aim, base, strict=True):
        if value < least:
            raise ValueError(f"the target's {name}, {value}, is below the base's, {least}: no small size is like it")
    if aim == base:
        raise ValueError(f"the target is the base itself, {_words(base)}: leave target= out to tune it")
    if aim.batch_size > base.batch_size and options.get("batch_size") is None and not setup.run:
        of_size(batches, aim.batch_size)  # says what batches of other sizes need
    lattice = _lattice(base, aim, setup.run, options.get("optimizer", "adamw"))
    of_run = (base.batch_size, base.steps) != (aim.batch_size, aim.steps)
    return dataclasses.replace(
        study,
        sweep=dataclasses.replace(study.sweep, adaptive=False, batch_sizes=()),
        durations=(steps,) if of_run else (),
        fixed="steps",
        target=aim._asdict(),
    ), lattice


def _checked(target: Mapping[str, int], options: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the target. Raises ValueError for what is none, and for options that a tune does not take."""
    if not isinstance(target, Mapping):
        raise ValueError(f"target must be dict(width=, depth=, batch_size=, steps=), got {short(target)}")
    for name in target:
        if name not in Size._fields:
            raise unknown("size of the target", name, Size._fields)
    for name in options:
        if name in CHOSEN:
            raise ValueError(f"with target= the trainings are chosen: leave {name}= out")
    if not isinstance(options.get("optimizer", "adamw"), str) and not callable(options["optimizer"]):
        raise ValueError("with target= one optimizer is tuned: give one name, or one function")
    return {name: at_least_one(f"{name} of the target", value) for name, value in target.items()}


def _study(
    setup: SetupLike,
    loss: Loss,
    batches: Batches,
    steps: int,
    target: Mapping[str, int],
    learning_rate: float | None,
    options: Mapping[str, Any],
) -> ModelStudy:
    """The study of the base, with the batches of all sizes of the lattice."""
    batch: Any = options.get("batch_size")
    batch = setup.run.base_batch if batch is None and setup.run else batch
    if not (batch is None or isinstance(batch, int | np.integer)) or isinstance(batch, bool):
        raise ValueError(f"batch_size must be that of the base, one number, got {short(batch)}")
    if batch is None and _needs_size(batches):
        raise ValueError("batches are a function (step, batch_size): give batch_size=, that of the base")
    durations = _values(steps, target.get("steps", steps))
    batch_sizes = [] if batch is None else _values(int(batch), target.get("batch_size", 0))
    if len(batch_sizes) == 1 and _needs_size(batches):
        batches = of_size(batches, batch_sizes[0])
    if len(durations) > 1 and setup.run and setup.run.base_steps != steps:
        raise ValueError(f"steps = {steps} must be base_steps = {setup.run.base_steps}, since the target's differ")
    if learning_rate is None:
        name = options.get("optimizer", "adamw")
        if name not in GRIDS:
            raise ValueError(
                "no learning rate is known for an optimizer of your own: give learning_rate=, a first guess"
            )
        learning_rate = 2.0 ** (sum(GRIDS[name]) / 2)
    others = {name: value for name, value in options.items() if name != "batch_size"}
    if trial_layout() == "map":  # one trial after another: one program for any number of them
        others.setdefault("at_once", AT_ONCE * max(1, len(jax.local_devices()) // others.get("devices_per_trial", 1)))
    width, _ = setup.parameterization.base_or(setup.width, setup.depth)
    study = study_of(
        setup,
        loss,
        batches,
        steps=durations if len(durations) > 1 else steps,
        batch_size=batch_sizes or None,
        learning_rates=learning_rate,
        widths=(width,),
        depths=(),
        seeds=1,
        **others,
    )
    if study.axes:
        raise ValueError(
            f"with target= the learning rate alone is tuned: give one {study.axes[0].key.partition('.')[2]}"
        )
    return study


def _lattice(base: Size, aim: Size, run: Run | None, optimizer: Any) -> list[Size]:
    """The sizes between the base and the target, small ones first, where the batch rule says something."""
    values = [_values(*ends) for ends in zip(base, aim, strict=True)]
    lattice = [Size(*size) for size in itertools.product(*values)]
    if run and isinstance(optimizer, str):
        _rule(run, optimizer, aim)
        lattice = [size for size in lattice if _has_rule(run, optimizer, size)]
    if len(lattice) < 2:
        raise ValueError(
            f"no size lies between the base, {_words(base)}, and the target, and a law needs two: twice the base must "
            "be below the target on some axis"
        )
    return sorted(lattice, key=lambda size: (size.compute, size))


def _rule(run: Run, optimizer: str, size: Size) -> None:
    """Raises ValueError for a size at which the batch rule says nothing."""
    run.at(size.batch_size, size.steps).factors(family_of(optimizer))


def _has_rule(run: Run, optimizer: str, size: Size) -> bool:
    try:
        _rule(run, optimizer, size)
    except ValueError:
        return False
    return True


def _needs_size(batches: Batches) -> bool:
    """Whether they are a function that cannot be called with the step alone."""
    if not callable(batches):
        return False
    parameters = inspect.signature(batches).parameters.values()
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) == 2


def _values(base: int, target: int) -> list[int]:
    """The base times 1, 2, 4, ..., as far as it is below the target."""
    return [base] + [base * 2**k for k in range(1, DOUBLINGS + 1) if base * 2**k < target]


class Known(NamedTuple):
    """The rows of a workdir that are trainings of this model, each once, with all sizes.

    table: a row for each. scores: {size: {log2 of the learning rate, rounded: the mean score}}, rates rising. rates,
    seeds: {(size, the same): the rate to the last bit; the seeds that are there}.
    """

    table: pandas.DataFrame
    scores: dict[Size, dict[float, float]]
    rates: dict[tuple[Size, float], float]
    seeds: dict[tuple[Size, float], set[int]]

    def has(self, size: Size, rate: float, seed: int) -> bool:
        return seed in self.seeds.get((size, _log(rate)), ())


def _log(rate: float) -> float:
    """log2 of a rate, by which rates are told apart."""
    return round(math.log2(rate), DIGITS)


class Stage(NamedTuple):
    """What to train next. words: what that is expected to bring."""

    trials: list[tuple[Size, float, int]]
    words: str = ""


class Expected(NamedTuple):
    """What a design expects at its end: seconds, trainings, the cost that is exceeded in 2.5% of the cases."""

    seconds: float
    trainings: int
    worst_cost: float

    def __str__(self) -> str:
        return f"{_about(self.seconds)} ({self.trainings} trainings)"


class Tuning:
    """One call. Its choices depend on the rows, on the seconds that were measured, and on what was chosen before.

    study: of the base, with the target. say: is told a line for each stage.
    """

    def __init__(
        self,
        study: ModelStudy,
        lattice: Sequence[Size],
        budget: float,
        tolerance: float,
        workdir: Path,
        say: Callable[[str], object],
        stop: Stop,
    ) -> None:
        assert study.target
        self.study, self.lattice, self.target = study, list(lattice), study.target
        self.budget, self.tolerance, self.workdir, self._say, self._stop = budget, tolerance, workdir, say, stop
        self.optimizer, self.parameterization = study.sweep.optimizers[0], study.sweep.parameterizations[0]
        self.base = lattice[0]
        low, high = study.sweep.log2_learning_rates[self.optimizer]
        self.guess = round((low + high) / 2 * study.sweep.per_octave)  # rates are numbered: 2^(number / per_octave)
        self.seconds = Seconds(study, lattice)
        self.spent = 0.0
        self.used: list[Size] = [self.base]  # the sizes of the study, whose programs the workdir knows
        self.left_out: list[Size] = []
        self.warned = False
        self.slower, self.overhead = 1.0, 0.0  # what corrects seconds: a factor, and seconds of each training

    def run(self) -> SweepResult:
        """Trains until the cost is below the tolerance, the budget is used, or nothing would help."""
        train(self.study, self.workdir, chosen=[], progress=False)  # is it the workdir of this model?
        self.choices = Choices(self.workdir, self._search())
        self._replay()
        if not self.seconds.measured:
            start = clock()
            self._measure(self.base, POINTS)
            self.spent += clock() - start
        least = self.spent + self.seconds.training(self.base)
        if self.budget < least and not self.choices.made:
            raise ValueError(
                f"budget = {self.budget:g} s is below one training of the smallest size, {_words(self.base)}, which "
                f"takes {least:.2g} s with its compilation"
            )
        why = self._stages()
        return self._result(why)

    def _search(self) -> dict[str, Any]:
        """What the choices depend on besides rows and seconds."""
        first = self._trial(self.base, self._rate(self.guess), 0)
        return {
            "target": self.target,
            "first": first.key,
            "judge_by": self.study.sweep.judge_by,
            "per_octave": self.study.sweep.per_octave,
        }

    def _replay(self) -> None:
        """Train what the choices of earlier calls lack."""
        made = list(self.choices.made)
        for choice, after in itertools.zip_longest(made, made[1:]):
            self.seconds.measured.update({shape: Timing(*timing) for shape, timing in choice.measured.items()})
            self.spent = choice.spent
            self._leave_out(choice.left_out)
            if choice.trials and after is None:
                self._train(choice)
            elif choice.trials:
                self._leave_out(after.left_out)
                self._train(choice, (*after.dropped, *after.left_out))
                self._correct(choice, after)

    def _stages(self) -> str:
        """Choose and train, stage by stage. Returns why that ended."""
        while True:
            self._stop_if_asked()
            known = self._known()
            law, no_law = self._law(known)
            self.prediction = self._predicted(law) if law else None
            self.law = law
            if self._reached:
                return f"the cost is below {_percent(self.tolerance)}, as wanted"
            first = self._bracket(known)
            stage = self._affordable(first)
            if not stage.trials and law:
                stage = self._designed(known, law)
            elif not first.trials:
                return f"no law: {no_law}"
            if not stage.trials:
                return stage.words
            expected = self._expected(stage.trials)
            self._tell(stage, expected)
            choice = Choice(tuple(stage.trials), expected, self.spent, dict(self.seconds.measured))
            self.choices.add(choice)
            self._train(choice)

    @property
    def _reached(self) -> bool:
        return self.prediction is not None and self.prediction.worst_cost <= self.tolerance

    # What is known

    def _known(self) -> Known:
        rows = dict[tuple[Size, float, int], Row]()
        if any((self.workdir / GROUPS).glob("*.parquet")):
            for row in load(self.workdir).to_dict("records"):
                place = self._place(row)
                if place is not None:
                    size, rate, seed = place
                    rows.setdefault(place, {**row, **size._asdict(), "learning_rate": rate, "seed": seed})
        table = pandas.DataFrame(list(rows.values()))
        losses = dict[Size, dict[float, list[float]]]()
        rates, seeds = dict[tuple[Size, float], float](), dict[tuple[Size, float], set[int]]()
        for (size, rate, seed), row in rows.items():
            log = _log(rate)
            losses.setdefault(size, {}).setdefault(log, []).append(score(row, self.study.sweep.judge_by))
            rates.setdefault((size, log), rate)
            seeds.setdefault((size, log), set()).add(seed)
        scores = {
            size: {log: float(np.mean(values)) for log, values in sorted(of_size.items())}
            for size, of_size in losses.items()
        }
        return Known(table, scores, rates, seeds)

    def _place(self, row: Row) -> tuple[Size, float, int] | None:
        """The size, rate and seed of a row; None if it is that of another optimizer, parameterization or setting."""
        try:
            batch = row.get("batch_size")
            has_batch = batch is not None and batch == batch  # rows of sweeps without one have none
            sizes = row["width"], row["depth"], batch if has_batch else self.base.batch_size, row["steps"]
            size = Size(*map(int, sizes))
            rate, seed = float(row["learning_rate"]), int(row["seed"])
        except (KeyError, TypeError, ValueError):
            return None
        study = dataclasses.replace(self.study, durations=(self.base.steps,) if has_batch else ())
        if not has_batch and size.steps != self.base.steps:
            return None
        trial = Trial(study.point_at(size, self.optimizer, self.parameterization), rate, seed)
        return (size, rate, seed) if trial.key == row["key"] else None

    def _law(self, known: Known) -> tuple[SweepLaw | None, str]:
        """(the law of all rows, why there is none)."""
        if known.table.empty:
            return None, "nothing is trained yet"
        try:
            return sweep_law(known.table, self.study), ""
        except ValueError as error:
            return None, str(error)

    def _predicted(self, law: SweepLaw) -> Prediction:
        return law.at(**{axis: self.target[axis] for axis in law.law.axes})

    # What to train next

    def _bracket(self, known: Known) -> Stage:
        """The first trainings: the smallest size, then the second one of each axis. None where those are there."""
        numbers = self._base_rates(known)
        if numbers:
            return Stage([(self.base, self._rate(n), 0) for n in numbers], "it is the search for the best rate there")
        best, step = self._best(known, self.base), self.study.sweep.per_octave
        for size in sorted(self._seconds_of_axes(), key=lambda size: self._expected([(size, 1.0, 0)])):
            around = [best, *(best + sign * BESIDE * step for sign in (-1, 1))]
            scores = known.scores.get(size, {})
            missing = [n for n in around if _log(self._rate(n)) not in scores]
            if len(scores) < LEAST and missing:
                return Stage([(size, self._rate(n), 0) for n in missing], "it shows how the best rate moves")
        return Stage([])

    def _base_rates(self, known: Known) -> list[int]:
        """Numbers of the rates that the smallest size lacks: around the first guess, then outward."""
        scores, step = known.scores.get(self.base, {}), self.study.sweep.per_octave
        first = [self.guess + octave * step for octave in sorted(range(-GUESS, GUESS + 1), key=abs)]
        if len(scores) < POINTS:
            missing = [n for n in first if _log(self._rate(n)) not in scores]
            if missing:
                return missing
        logs, values = list(scores), list(scores.values())
        lowest, highest = math.floor(logs[0] * step), math.ceil(logs[-1] * step)
        fails = not any(map(math.isfinite, values))
        at = int(np.argmin(values))
        down = [lowest - step, lowest - 2 * step] if fails or at == 0 else []
        up = [highest + step, highest + 2 * step] if not fails and at == len(values) - 1 else []
        within = [n for n in (*down, *up) if abs(n - self.guess) <= OUTWARD * step]
        if fails and not within:
            raise ValueError(
                f"every training diverges at {_words(self.base)}, at learning rates from {2 ** logs[0]:.2g} to "
                f"{2 ** logs[-1]:.2g}: give another first guess, learning_rate=, or look at loss and batches"
            )
        return within

    def _best(self, known: Known, size: Size) -> int:
        scores = known.scores[size]
        return round(min(scores, key=lambda log: scores[log]) * self.study.sweep.per_octave)

    def _seconds_of_axes(self) -> list[Size]:
        """The second size of each axis that varies, the others at the base."""
        result = []
        for place in range(len(Size._fields)):
            along = sorted(size for size in self._sizes() if _others(size, place) == _others(self.base, place))
            result += along[1:2]
        return result

    def _sizes(self) -> list[Size]:
        return [size for size in self.lattice if size not in self.left_out]

    def _affordable(self, stage: Stage) -> Stage:
        """The first trainings of a stage that the rest of the budget pays."""
        trials = list(stage.trials)
        while trials and self.spent + self._expected(trials) > self.budget:
            trials.pop()
        if not trials:
            return Stage([], f"the budget, {duration(self.budget)}, is used up")
        return stage._replace(trials=trials)

    def _designed(self, known: Known, law: SweepLaw) -> Stage:
        """The trainings that bring the cost down most for each second, at most as many seconds as were spent."""
        assert self.prediction
        rest = self.budget - self.spent
        affordable = self._candidates(known, law, rest)
        if not affordable:
            return Stage([], f"the budget, {duration(self.budget)}, is used up: no training fits into the rest")
        cheapest, dearest = (of(c["cost"] for c in affordable) for of in (min, max))
        whole = self._expectation(law, affordable, rest)
        part = min(rest, max(self.spent, cheapest))
        while True:
            chosen = self._design(law, [c for c in affordable if c["cost"] <= part], part)
            if len(chosen.rows) or part >= min(rest, 2 * dearest):
                break
            part = min(rest, 2 * part)
        worst = self.prediction.worst_cost
        helped = any(after[-1] < (1 - HELPS) * after[0] for after in (chosen.cost, chosen.worst_cost))
        if not len(chosen.rows) or not (helped or whole.worst_cost < (1 - HELPS) * worst):
            left = "nothing that is left" if math.isinf(self.budget) else "nothing in the rest of the budget"
            return Stage([], f"{left} would bring the cost much below {_percent(worst)}")
        small = [c for c in affordable if c["cost"] <= part]
        trials = [small[i]["trial"] for i in chosen.rows]
        while len(trials) > 1 and self._expected(trials) > part:  # programs of few trainings
            trials.pop()
        words = f"it is expected to bring the cost to {_percent(float(chosen.worst_cost[len(trials)]))}"
        if whole.worst_cost > self.tolerance:
            words += self._out_of_reach(known, law, whole)
        elif len(trials) < whole.trainings:
            words += f", and to {_percent(self.tolerance)} after {whole}"
        return Stage(trials, words)

    def _out_of_reach(self, known: Known, law: SweepLaw, whole: Expected) -> str:
        """What the rest of the budget is expected to reach, and, at first, what more would take."""
        text = "" if math.isinf(self.budget) else f", the whole budget to {_percent(whole.worst_cost)}"
        far = "" if self.warned else f"; {self._far(law, self._candidates(known, law))}"
        self.warned = True
        return text + far

    def _expectation(self, law: SweepLaw, candidates: Sequence[Mapping[str, Any]], budget: float) -> Expected:
        whole = self._design(law, _again(_thinned(candidates, THINNED // 2)), budget)
        return Expected(float(whole.spent[-1]), len(whole.rows), float(whole.worst_cost[-1]))

    def _design(self, law: SweepLaw, candidates: Sequence[Mapping[str, Any]], budget: float) -> Any:
        names = (*law.law.axes, "learning_rate", "cost", "seed")
        table = {name: [c[name] for c in candidates] for name in names}
        aim = {axis: self.target[axis] for axis in law.law.axes}
        return fit.design(law.law, table, aim, budget=budget, tolerance=self.tolerance)

    def _candidates(self, known: Known, law: SweepLaw, most: float = math.inf) -> list[dict[str, Any]]:
        """What may be trained next: each size at the rates near the law's, with one more seed. most: seconds of one."""
        sizes = _thinned([size for size in self._sizes() if self._expected([(size, 1.0, 0)]) <= most], SIZES)
        if not sizes:
            return []
        rates = law.law.rates({axis: [getattr(size, axis) for size in sizes] for axis in law.law.axes}).value
        step, result = self.study.sweep.per_octave, list[dict[str, Any]]()
        for size, best in zip(sizes, rates.tolist(), strict=True):
            factor = law.factor(size.batch_size, size.steps)
            cost = self._training(size) + self.slower * self.seconds.compiling(size) / PER_PROGRAM
            middle = math.log2(best / factor)
            for n in range(math.ceil((middle - NEAR) * step), math.floor((middle + NEAR) * step) + 1):
                place = size, _log(self._rate(n))
                rate = known.rates.get(place, self._rate(n))
                seed = max(known.seeds.get(place, ()), default=-1) + 1
                trial = size, rate, seed
                sizes_of = size._asdict()
                result.append({**sizes_of, "learning_rate": rate * factor, "cost": cost, "seed": seed, "trial": trial})
        return result

    def _rate(self, number: int) -> float:
        return float(np.exp2(number / self.study.sweep.per_octave))

    def _trial(self, size: Size, rate: float, seed: int) -> Trial:
        return Trial(self.study.point_at(size, self.optimizer, self.parameterization), rate, seed)

    # Training

    def _expected(self, trials: Sequence[tuple[Size, float, int]]) -> float:
        """Seconds of trainings, each program compiled once."""
        programs = {size[:3]: size for size, _, _ in trials}
        training = sum(self._training(size) for size, _, _ in trials)
        return training + self.slower * sum(map(self.seconds.compiling, programs.values()))

    def _train(self, choice: Choice, dropped: Sequence[Size] | None = None) -> None:
        """Train what the workdir lacks of a choice, size by size. Seconds are those of the clock where all was lacking,
        else those that were expected. dropped: sizes that are not trained; None: what the budget does not pay."""
        start, known = clock(), self._known()
        missing = [trial for trial in choice.trials if not known.has(*trial) and trial[0] not in (dropped or ())]
        by_size = dict[Size, list[Trial]]()
        for size, rate, seed in missing:
            by_size.setdefault(size, []).append(self._trial(size, rate, seed))
        without, late = list[Size](), list[Size]()
        for number, size in enumerate(sorted(by_size, key=lambda size: (size.compute, size))):
            if size in self.left_out:
                continue
            if number and dropped is None and choice.spent + clock() - start > LATE * self.budget:
                late.append(size)
                continue
            try:
                self._measure(size, len(by_size[size]))
                self._stop_if_asked()
                self._use([size])
                study, runner = self._study_of(self.used), self.seconds.runner
                train(study, self.workdir, chosen=by_size[size], runner=runner, progress=False)
            except OutOfMemory as error:
                without.append(size)
                self._leave_out([size])
                self.used = [other for other in self.used if other != size]
                self._say(f"{_words(size)} does not fit into memory and is left out, with all that are larger: {error}")
            self._stop_if_asked()
        whole = len(missing) == len(choice.trials)
        self._use([size for size, _, _ in choice.trials if size not in (*without, *late, *(dropped or ()))])
        self.spent = choice.spent + (clock() - start if whole else choice.seconds)
        if self.base in without:
            raise OutOfMemory(f"the smallest size, {_words(self.base)}, does not fit into memory")
        if dropped is None:
            measured = dict(self.seconds.measured)
            self.choices.add(Choice((), 0.0, self.spent, measured, tuple(without), tuple(late)))
            self._correct(choice, self.choices.made[-1])

    def _correct(self, choice: Choice, after: Choice) -> None:
        """Learn from the seconds of a choice how long the next takes; from the first one, of the smallest size, what
        each training takes besides its steps."""
        taken = after.spent - choice.spent
        if after.dropped or after.left_out or not choice.seconds > 0 or not taken > 0:
            return
        if choice is self.choices.made[0]:
            self.overhead = max(taken - choice.seconds, 0.0) / len(choice.trials)
        else:
            self.slower = min(max(self.slower * (taken / choice.seconds) ** 0.5, SLOWER[0]), SLOWER[1])

    def _training(self, size: Size) -> float:
        return self.slower * (self.overhead + self.seconds.training(size))

    def _leave_out(self, sizes: Sequence[Size]) -> None:
        """Leave out sizes, and those whose model and batch are as large or larger."""
        for small in sizes:
            larger = [s for s in self.lattice if all(a >= b for a, b in zip(s[:3], small[:3], strict=True))]
            self.left_out += [size for size in larger if size not in self.left_out]

    def _measure(self, size: Size, count: int) -> None:
        trials = [self._trial(size, self._rate(self.guess), seed) for seed in range(count)]
        self.seconds.measure(trials)

    def _use(self, sizes: Sequence[Size]) -> None:
        """From now on the study has these sizes too."""
        self.used = list(dict.fromkeys((*self.used, *sizes)))

    def _study_of(self, used: Sequence[Size]) -> ModelStudy:
        """The study of these sizes: those that differ from the base in one are on its axis, the others on none."""
        base = self.base

        def along(place: int) -> tuple[int, ...]:
            return tuple(
                sorted({size[place] for size in used if _others(size, place) == _others(base, place)} | {base[place]})
            )

        widths, depths, batches, steps = map(along, range(4))
        sweep = dataclasses.replace(
            self.study.sweep, widths=widths, depths=depths, batch_sizes=batches if len(batches) > 1 else ()
        )
        off = [size for size in used if sum(a != b for a, b in zip(size, base, strict=True)) > 1]
        return dataclasses.replace(
            self.study, sweep=sweep, durations=steps if self.study.durations else (), lattice=tuple(off)
        )

    def _stop_if_asked(self) -> None:
        if self._stop.requested:
            raise Stopped(self._stop.requested, f"between two sizes: {GOES_ON}")

    # What is said

    def _tell(self, stage: Stage, expected: float) -> None:
        so_far = f"{duration(self.spent)} spent" if self.choices.made else "start"
        self._say(
            f"{so_far}: {_interval(self.prediction)}; next {_counts(stage.trials)}, {_about(expected)}; {stage.words}"
        )

    def _result(self, why: str) -> SweepResult:
        known = self._known()
        study = self._study_of(sorted({*self.used, *(size for size in known.scores if size in self.lattice)}))
        on_axes = [size for size, of_size in known.scores.items() if len(of_size) >= POINTS]
        judged = self._study_of(on_axes)
        chosen = [trial for choice in self.choices.made for trial in choice.trials if known.has(*trial)]
        note = (
            f"spent {duration(self.spent)} on {_counts(chosen)}"
            if chosen
            else "nothing was trained: the rows were there"
        )
        lines = [note, why]
        if not self._reached and self.law:
            lines.append(self._to_go_on(known, self.law))
        return SweepResult(
            known.table,
            judge(known.table, judged),
            study,
            self.workdir,
            "\n".join(lines),
            self.law.law if self.law else None,
            self.prediction,
        )

    def _to_go_on(self, known: Known, law: SweepLaw) -> str:
        candidates = self._candidates(known, law)
        if not candidates:
            return "no training at a smaller size would help: give a larger base, or train nearer to the target"
        seconds = max(self.spent, candidates[0]["cost"])
        again = self._expectation(law, [c for c in candidates if c["cost"] <= seconds], seconds)
        total = duration(self.spent + seconds)
        text = f"to go on: budget= of {total} in all is expected to bring it to {_percent(again.worst_cost)}"
        return text if again.worst_cost <= self.tolerance else f"{text}; {self._far(law, candidates)}"

    def _far(self, law: SweepLaw, candidates: Sequence[Mapping[str, Any]]) -> str:
        """What the tolerance would take."""
        far = self._expectation(law, candidates, math.inf)
        if far.worst_cost <= self.tolerance:
            return f"{_percent(self.tolerance)} would take {far} from here"
        return (
            f"{_percent(self.tolerance)} is far: {far} from here are expected to bring it to {_percent(far.worst_cost)}"
        )


def _thinned(items: Sequence[Any], count: int) -> list[Any]:
    """At most so many of the items, evenly, the first and the last among them."""
    places = np.linspace(0, len(items) - 1, min(len(items), count)).round().astype(int)
    return [items[i] for i in places.tolist()]


def _again(candidates: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The candidates, and each with another seed."""
    return [*candidates, *({**c, "seed": c["seed"] + 1} for c in candidates)]


def _others(size: Size, place: int) -> tuple[int, ...]:
    return size[:place] + size[place + 1 :]


def _interval(p: Prediction | None) -> str:
    if p is None:
        return "no law yet"
    rate = f"learning rate {p.learning_rate:.3g} [{p.low:.3g}, {p.high:.3g}]"
    return f"{rate}, costs at most {_percent(p.worst_cost)} (97.5%)"


def _about(seconds: float) -> str:
    return f"about {math.ceil(seconds)} s" if seconds < 60 else about(seconds)


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 1 else f"{100 * share:.0f}%"


def _counts(trials: Sequence[tuple[Size, float, int]]) -> str:
    """The trainings at each size, in words."""
    counts = dict[Size, int]()
    for size, _, _ in trials:
        counts[size] = counts.get(size, 0) + 1
    of_sizes = [f"{count} at {_words(size)}" for size, count in sorted(counts.items(), key=lambda of: of[0].compute)]
    shown = [*of_sizes[:4], *([f"{len(of_sizes) - 4} more sizes"] if len(of_sizes) > 4 else [])]
    return f"{len(trials)} training{'s' * (len(trials) != 1)} ({', '.join(shown)})"


def _words(size: Size) -> str:
    return f"width {size.width} depth {size.depth} batch size {size.batch_size} steps {size.steps}"

"""The search of `m.tune(target=)` and `main.py tune`: it trains the small sizes and rates that tell most of a large run
for each second."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas

from depthmup import bucket, fit
from depthmup.cli_flags import changed
from depthmup.fit import Prediction
from depthmup.fit.curve import POINTS
from depthmup.fit.law_rows import DIGITS, LEAST
from depthmup.names import percent
from depthmup.report import page
from depthmup.report.curves import judge
from depthmup.report.large_run import SweepLaw, sweep_law
from depthmup.report.result import SweepResult
from depthmup.report.search import Course
from depthmup.settings import LEARNING_RATE, column, flat
from depthmup.train.stop import Stop, Stopped
from depthmup.trials.choices import Answer, Choice, Choices
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.engine import train
from depthmup.trials.estimate import duration
from depthmup.trials.group import CACHE, OutOfMemory, compiled_in
from depthmup.trials.model_study import ModelStudy
from depthmup.trials.plan import score
from depthmup.trials.progress import about
from depthmup.trials.seconds import Seconds, Timing, shape_of
from depthmup.trials.store import GROUPS, load
from depthmup.trials.study import COMPLEMENTS, Row, Size, Study, Trial, judged_name, judged_value
from depthmup.trials.workers import RETRIES, Calls, check_executor, time_groups

SIZES = 100  # of the lattice that are candidates at once
THINNED = 300  # candidates for what more seconds are expected to bring
LATE = 1.1  # of the budget: what takes longer is dropped
SLOWER = 0.5, 4.0  # ends of the factor by which seconds are corrected
SLOWER_WITH_WORKERS = 1e-3, 4.0  # many train at once
GUESS = 2  # octaves to either side of a first guess
BESIDE = 1  # octaves to either side of the best value, at the second size of an axis
OUTWARD = 10  # octaves from the first guess that the search for a value that trains may go
NEAR = 2.5  # octaves from the value that the law predicts for a size
HELPS = 0.02  # share of the cost by which what is left must be expected to bring it down
PER_PROGRAM = POINTS  # trainings that share what the compilation of their program costs
clock = time.monotonic


def search(
    study: Study,
    lattice: Sequence[Size],
    budget: float,
    tolerance: float,
    workdir: str | Path | None,
    progress: bool,
    command: str,
    executor: Executor | None = None,
    retries: int = RETRIES,
    rates: Callable[[Size], float] | None = None,
) -> SweepResult:
    """Train what tells most of the target of a study, with its report in the workdir.

    Args:
      study: of the base, with the target.
      lattice: the sizes that may be trained, small ones first, the base before all.
      budget: seconds, of all calls for this target in the workdir. tolerance: of the 97.5% cost, a share of the loss.
      workdir: None: nothing is stored.
      progress: whether a line for each stage is printed. command: of the report.
      executor, retries: of `trials.engine.train`. All sizes of a stage are trained at once.
      rates: the learning rate at each size, where the study searches for another hyperparameter.
    """
    if executor:
        check_executor(executor)
    say = functools.partial(print, flush=True) if progress else lambda text: None
    if workdir is not None and bucket.in_bucket(workdir):
        raise ValueError(f"a tune in {workdir}: its choices need a lock, which a bucket has not: give a local workdir")
    with contextlib.ExitStack() as stack:
        folder = Path(workdir if workdir is not None else stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(compiled_in(folder / CACHE if study.sweep.cache else None))
        stop = stack.enter_context(Stop())
        tuning = Tuning(study, lattice, budget, tolerance, folder, say, stop, executor, retries, rates, command)
        result = tuning.run()
        if workdir is None:
            note = "nothing is stored: workdir=DIR keeps the rows, and the same call goes on from there"
            return dataclasses.replace(result, workdir=None, note=f"{result.note}\n{note}")
        page.write_report(result.curves, result.rows, result.study, folder, command, course=tuning.course())
        return result


class Known(NamedTuple):
    """The rows of a workdir that are trainings of this model, each once, with all sizes.

    table: a row for each. scores: {size: {log2 of the value, rounded: the mean score}}, rising. values, seeds:
    {(size, the same): the value to the last bit; the seeds that are there}. A value is a learning rate, or what another
    hyperparameter is judged by.
    """

    table: pandas.DataFrame
    scores: dict[Size, dict[float, float]]
    values: dict[tuple[Size, float], float]
    seeds: dict[tuple[Size, float], set[int]]

    def has(self, size: Size, value: float, seed: int) -> bool:
        return seed in self.seeds.get((size, _log(value)), ())


def _log(value: float) -> float:
    """log2 of a value, by which values are told apart."""
    return round(math.log2(value), DIGITS)


class NextTrainings(NamedTuple):
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

    study: of the base, with the target. say: is told a line for each stage. The others are those of `search`.
    """

    def __init__(
        self,
        study: Study,
        lattice: Sequence[Size],
        budget: float,
        tolerance: float,
        workdir: Path,
        say: Callable[[str], object],
        stop: Stop,
        executor: Executor | None,
        retries: int,
        rates: Callable[[Size], float] | None,
        command: str,
    ) -> None:
        assert study.target
        self.study, self.lattice, self.target = study, list(lattice), study.target
        self.budget, self.tolerance, self.workdir, self._say, self._stop = budget, tolerance, workdir, say, stop
        self._executor, self._retries, self._rates, self._command = executor, retries, rates, command
        self._words = judged_name(study.searched).replace("_", " ")
        self._slower = SLOWER_WITH_WORKERS if executor else SLOWER
        self.optimizer, self.parameterization = study.sweep.optimizers[0], study.sweep.parameterizations[0]
        self.base = lattice[0]
        if rates is None:
            low, high = study.sweep.log2_learning_rates[self.optimizer]
        else:
            low = high = math.log2(judged_value(study.searched, study.axes[0].values[0]))
        self.guess = round((low + high) / 2 * study.sweep.per_octave)  # values are numbered: 2^(number / per_octave)
        self.seconds = Seconds(study, lattice)
        self.spent = 0.0
        self.used: list[Size] = [self.base]  # the sizes of the study, whose programs the workdir knows
        self.left_out: list[Size] = []
        self.warned = False
        self.law: SweepLaw | None = None
        self.prediction: Prediction | None = None
        self.slower, self.overhead = 1.0, 0.0  # what corrects seconds: a factor, and seconds of each training

    def run(self) -> SweepResult:
        """Trains until the cost is below the tolerance, the budget is used, or nothing would help. Ctrl-C ends it too,
        with the answer as it stands; it raises Stopped where there is none, and for SIGTERM."""
        train(self.study, self.workdir, chosen=[], progress=False)  # is it the workdir of this model?
        self.choices = Choices(self.workdir, self._search())
        try:
            self._begin()
            return self._result(self._stages())
        except Stopped as stopped:
            self._look()
            if stopped.signal != signal.SIGINT or self.law is None:
                raise
            return self._result(str(stopped), plans=False)

    def _begin(self) -> None:
        """Go through the choices of earlier calls, and time the smallest size."""
        self._replay()
        if not self.seconds.measured:
            start = clock()
            self._measure({self.base: self._of_seeds(self.base, POINTS)})
            self.spent += clock() - start
        least = self.spent + self.seconds.training(self.base)
        if self.budget < least and not self.choices.made:
            raise ValueError(
                f"budget = {self.budget:g} s is below one training of the smallest size, {self.base}, which "
                f"takes {least:.2g} s with its compilation"
            )

    def _search(self) -> dict[str, Any]:
        """What the choices depend on besides rows and seconds."""
        first = self._trial(self.base, self._value(self.guess), self.study.seed)
        sizes = Size(**self.target), self.base
        return {
            "target": self.target,
            "first": first.key,
            "judge_by": self.study.sweep.judge_by,
            "per_octave": self.study.sweep.per_octave,
            **({"learning_rates": list(map(self._rates, sizes))} if self._rates else {}),
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
            no_law = self._look()
            known, law = self.known, self.law
            if self._reached:
                return f"the cost is below {percent(self.tolerance)}, as wanted"
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
            measured = dict(self.seconds.measured)
            answer = _answer(self.prediction) if self.prediction else None
            choice = Choice(tuple(stage.trials), expected, self.spent, measured, answer=answer)
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
                    size, _, seed = place
                    rate = float(row["learning_rate"])
                    rows.setdefault(place, {**row, **size._asdict(), "learning_rate": rate, "seed": seed})
        table = pandas.DataFrame(list(rows.values()))
        losses = dict[Size, dict[float, list[float]]]()
        values, seeds = dict[tuple[Size, float], float](), dict[tuple[Size, float], set[int]]()
        for (size, value, seed), row in rows.items():
            log = _log(value)
            losses.setdefault(size, {}).setdefault(log, []).append(score(row, self.study.sweep.judge_by))
            values.setdefault((size, log), value)
            seeds.setdefault((size, log), set()).add(seed)
        scores = {
            size: {log: float(np.mean(of_value)) for log, of_value in sorted(of_size.items())}
            for size, of_size in losses.items()
        }
        return Known(table, scores, values, seeds)

    def _place(self, row: Row) -> tuple[Size, float, int] | None:
        """The size, value and seed of a row; None if it is that of another optimizer, parameterization or setting."""
        key = self.study.searched
        try:
            point = self.study.point_of(row, self.optimizer, self.parameterization)
            rate, seed, option = float(row["learning_rate"]), int(row["seed"]), float(row[column(key)])
        except (KeyError, TypeError, ValueError):
            return None
        if point and self._rates:
            if rate != self._rates(point.size):
                return None
            point = self.study.with_value(point, key, option)
        value = judged_value(key, option)
        return (point.size, value, seed) if point and Trial(point, rate, seed).key == row["key"] else None

    def _look(self) -> str:
        """Read all rows into `known`; `law` and `prediction` are then theirs. Returns why they allow no law, or ""."""
        self.known, self.law, self.prediction = self._known(), None, None
        if self.known.table.empty:
            return "nothing is trained yet"
        try:
            self.law = sweep_law(self.known.table, self.study)
        except ValueError as error:
            return str(error)
        self.prediction = self.law.at(**{axis: self.target[axis] for axis in self.law.law.axes})
        return ""

    # What to train next

    def _bracket(self, known: Known) -> NextTrainings:
        """The first trainings: the smallest size, then the second one of each axis. None where those are there."""
        numbers = self._base_values(known)
        if numbers:
            return NextTrainings(
                self._first_of(self.base, numbers), f"it is the search for the best {self._words} there"
            )
        best, step = self._best(known, self.base), self.study.sweep.per_octave
        for size in sorted(self._seconds_of_axes(), key=lambda size: self._expected([(size, 1.0, 0)])):
            around = [best, *(best + sign * BESIDE * step for sign in (-1, 1))]
            scores = known.scores.get(size, {})
            missing = [n for n in around if _log(self._value(n)) not in scores]
            if len(scores) < LEAST and missing:
                return NextTrainings(self._first_of(size, missing), f"it shows how the best {self._words} moves")
        return NextTrainings([])

    def _first_of(self, size: Size, numbers: Sequence[int]) -> list[tuple[Size, float, int]]:
        """Trainings of the first seed."""
        return [(size, self._value(n), self.study.seed) for n in numbers]

    def _base_values(self, known: Known) -> list[int]:
        """Numbers of the values that the smallest size lacks: around the first guess, then outward."""
        scores, step = known.scores.get(self.base, {}), self.study.sweep.per_octave
        first = [self.guess + octave * step for octave in sorted(range(-GUESS, GUESS + 1), key=abs)]
        first = [n for n in first if self._is_possible(n)]
        if len(scores) < len(first):
            missing = [n for n in first if _log(self._value(n)) not in scores]
            if missing:
                return missing
        logs, values = list(scores), list(scores.values())
        lowest, highest = math.floor(logs[0] * step), math.ceil(logs[-1] * step)
        fails = not any(map(math.isfinite, values))
        at = int(np.argmin(values))
        down = [lowest - step, lowest - 2 * step] if fails or at == 0 else []
        up = [highest + step, highest + 2 * step] if not fails and at == len(values) - 1 else []
        within = [n for n in (*down, *up) if abs(n - self.guess) <= OUTWARD * step and self._is_possible(n)]
        if fails and not within:
            raise ValueError(
                f"every training diverges at {self.base}, at {self._words} from {2 ** logs[0]:.2g} to "
                f"{2 ** logs[-1]:.2g}: give another first guess, or look at loss and batches"
            )
        return within

    def _best(self, known: Known, size: Size) -> int:
        scores = known.scores[size]
        return round(min(scores, key=lambda log: scores[log]) * self.study.sweep.per_octave)

    def _seconds_of_axes(self) -> list[Size]:
        """The second size of each axis that varies, the others at the base."""
        result = []
        for place in range(len(Size._fields)):
            along = sorted(size for size in self._sizes() if size.alike(self.base, place))
            result += along[1:2]
        return result

    def _sizes(self) -> list[Size]:
        return [size for size in self.lattice if size not in self.left_out]

    def _affordable(self, stage: NextTrainings) -> NextTrainings:
        """The first trainings of a stage that the rest of the budget pays."""
        trials = list(stage.trials)
        while trials and self.spent + self._expected(trials) > self.budget:
            trials.pop()
        if not trials:
            return NextTrainings([], f"the budget, {duration(self.budget)}, is used up")
        return stage._replace(trials=trials)

    def _designed(self, known: Known, law: SweepLaw) -> NextTrainings:
        """The trainings that bring the cost down most for each second, at most as many seconds as were spent."""
        assert self.prediction
        rest = self.budget - self.spent
        affordable = self._candidates(known, law, rest)
        if not affordable:
            return NextTrainings([], f"the budget, {duration(self.budget)}, is used up: no training fits into the rest")
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
            return NextTrainings([], f"{left} would bring the cost much below {percent(worst)}")
        small = [c for c in affordable if c["cost"] <= part]
        trials = [small[i]["trial"] for i in chosen.rows]
        while len(trials) > 1 and self._expected(trials) > part:  # programs of few trainings
            trials.pop()
        words = f"it is expected to bring the cost to {percent(float(chosen.worst_cost[len(trials)]))}"
        if whole.worst_cost > self.tolerance:
            words += self._out_of_reach(known, law, whole)
        elif len(trials) < whole.trainings:
            words += f", and to {percent(self.tolerance)} after {whole}"
        return NextTrainings(trials, words)

    def _out_of_reach(self, known: Known, law: SweepLaw, whole: Expected) -> str:
        """What the rest of the budget is expected to reach, and, at first, what more would take."""
        text = "" if math.isinf(self.budget) else f", the whole budget to {percent(whole.worst_cost)}"
        far = "" if self.warned else f"; {self._far(law, self._candidates(known, law))}"
        self.warned = True
        return text + far

    def _expectation(self, law: SweepLaw, candidates: Sequence[Mapping[str, Any]], budget: float) -> Expected:
        whole = self._design(law, _again(_thinned(candidates, THINNED // 2)), budget)
        return Expected(float(whole.spent[-1]), len(whole.rows), float(whole.worst_cost[-1]))

    def _design(self, law: SweepLaw, candidates: Sequence[Mapping[str, Any]], budget: float) -> Any:
        names = (*law.law.axes, law.law.hyperparameter, "cost", "seed")
        table = {name: [c[name] for c in candidates] for name in names}
        aim = {axis: self.target[axis] for axis in law.law.axes}
        return fit.design(law.law, table, aim, budget=budget, tolerance=self.tolerance)

    def _candidates(self, known: Known, law: SweepLaw, most: float = math.inf) -> list[dict[str, Any]]:
        """What may be trained next: each size at values near the law's, with one more seed. most: seconds of one."""
        sizes = _thinned([size for size in self._sizes() if self._expected([(size, 1.0, 0)]) <= most], SIZES)
        if not sizes:
            return []
        optima = law.law.rates({axis: [getattr(size, axis) for size in sizes] for axis in law.law.axes}).value
        step, result = self.study.sweep.per_octave, list[dict[str, Any]]()
        for size, best in zip(sizes, optima.tolist(), strict=True):
            factor = law.factor(size.batch_size, size.steps)
            cost = self._training(size) + self.slower * self.seconds.compiling(size) / PER_PROGRAM
            middle = math.log2(best / factor)
            for n in range(math.ceil((middle - NEAR) * step), math.floor((middle + NEAR) * step) + 1):
                if not self._is_possible(n):
                    continue
                place = size, _log(self._value(n))
                value = known.values.get(place, self._value(n))
                seed = max(known.seeds.get(place, ()), default=self.study.seed - 1) + 1
                trial = size, value, seed
                sizes_of = size._asdict()
                of_trial = {law.law.hyperparameter: value * factor, "cost": cost, "seed": seed, "trial": trial}
                result.append({**sizes_of, **of_trial})
        return result

    def _is_possible(self, number: int) -> bool:
        """Whether there is a value of this number: an average has 1 - b2 below 1."""
        return number < 0 or self.study.searched not in COMPLEMENTS

    def _value(self, number: int) -> float:
        return float(np.exp2(number / self.study.sweep.per_octave))

    def _trial(self, size: Size, value: float, seed: int) -> Trial:
        point = self.study.point_at(size, self.optimizer, self.parameterization)
        if self._rates is None:
            return Trial(point, value, seed)
        key = self.study.searched
        return Trial(self.study.with_value(point, key, judged_value(key, value)), self._rates(size), seed)

    # Training

    def _expected(self, trials: Sequence[tuple[Size, float, int]]) -> float:
        """Seconds of trainings, each program compiled once."""
        programs = {size[:3]: size for size, _, _ in trials}
        training = sum(self._training(size) for size, _, _ in trials)
        return training + self.slower * sum(map(self.seconds.compiling, programs.values()))

    def _train(self, choice: Choice, dropped: Sequence[Size] | None = None) -> None:
        """Train what the workdir lacks of a choice, size by size, or all at once on an executor's workers. Seconds are
        those of the clock where all was lacking, else those that were expected. dropped: sizes that are not trained;
        None: what the budget does not pay."""
        start, known = clock(), self._known()
        missing = [trial for trial in choice.trials if not known.has(*trial) and trial[0] not in (dropped or ())]
        sizes = sorted({size for size, _, _ in missing}, key=lambda size: (size.compute, size))
        without, late = list[Size](), list[Size]()
        for number, part in enumerate([sizes] if self._executor else [[size] for size in sizes]):
            part = [size for size in part if size not in self.left_out]
            if not part:
                continue
            if number and dropped is None and choice.spent + clock() - start > LATE * self.budget:
                late += part
                continue
            without += self._train_sizes({size: [place for place in missing if place[0] == size] for size in part})
            self._stop_if_asked()
        whole = len(missing) == len(choice.trials)
        self._use([size for size, _, _ in choice.trials if size not in (*without, *late, *(dropped or ()))])
        self.spent = choice.spent + (clock() - start if whole else choice.seconds)
        if self.base in without:
            raise OutOfMemory(f"the smallest size, {self.base}, does not fit into memory")
        if dropped is None:
            measured = dict(self.seconds.measured)
            self.choices.add(Choice((), 0.0, self.spent, measured, tuple(without), tuple(late)))
            self._correct(choice, self.choices.made[-1])

    def _train_sizes(self, places: Mapping[Size, Sequence[tuple[Size, float, int]]]) -> list[Size]:
        """Time and train what is chosen at each size. Returns the sizes that do not fit into memory, which are left out
        from now on."""
        fitting, errors = list(places), list[OutOfMemory]()
        try:
            self._measure({size: self._of_seeds(size, len(of_size)) for size, of_size in places.items()})
        except OutOfMemory as error:  # all others are timed
            fitting = [size for size in fitting if shape_of(size) in self.seconds.measured]
            errors.append(error)
        self._stop_if_asked()
        self._use(fitting)
        try:
            train(
                self.study.at_sizes(self.used),
                self.workdir,
                chosen=[self._trial(*place) for size in fitting for place in places[size]],
                runner=self.seconds.runner,
                progress=False,
                executor=self._executor,
                retries=self._retries,
            )
        except OutOfMemory as error:  # all others are trained
            errors.append(error)
            known = self._known()
            fitting = [size for size in fitting if all(known.has(*place) for place in places[size])]
        without = [size for size in places if size not in fitting]
        self._leave_out(without)
        self.used = [size for size in self.used if size not in without]
        for size in without:
            self._say(f"{size} does not fit into memory and is left out, with all that are larger: {errors[0]}")
        return without

    def _correct(self, choice: Choice, after: Choice) -> None:
        """Learn from the seconds of a choice how long the next takes; from the first one, of the smallest size, what
        each training takes besides its steps."""
        taken = after.spent - choice.spent
        if after.dropped or after.left_out or not choice.seconds > 0 or not taken > 0:
            return
        if choice is self.choices.made[0]:
            self.overhead = max(taken - choice.seconds, 0.0) / len(choice.trials)
        else:
            self.slower = min(max(self.slower * (taken / choice.seconds) ** 0.5, self._slower[0]), self._slower[1])

    def _training(self, size: Size) -> float:
        return self.slower * (self.overhead + self.seconds.training(size))

    def _leave_out(self, sizes: Sequence[Size]) -> None:
        """Leave out sizes, and those whose model and batch are as large or larger."""
        for small in sizes:
            larger = [s for s in self.lattice if all(a >= b for a, b in zip(s[:3], small[:3], strict=True))]
            self.left_out += [size for size in larger if size not in self.left_out]

    def _of_seeds(self, size: Size, count: int) -> list[Trial]:
        return [self._trial(size, self._value(self.guess), seed) for seed in range(count)]

    def _measure(self, trials_of: Mapping[Size, Sequence[Trial]]) -> None:
        """Time what is not timed yet. Raises OutOfMemory when all is timed that fits."""
        if not self._executor:
            for trials in trials_of.values():
                self.seconds.measure(trials)
            return
        groups = {shape_of(size): self.seconds.group(trials) for size, trials in trials_of.items()}
        with contextlib.closing(Calls(self.study, self.workdir, self._executor, self._retries, self._say)) as calls:
            time_groups(groups, self.seconds.measured, calls, self._stop_if_asked)

    def _use(self, sizes: Sequence[Size]) -> None:
        """From now on the study has these sizes too."""
        self.used = list(dict.fromkeys((*self.used, *sizes)))

    def _stop_if_asked(self) -> None:
        self._stop.check("between two sizes")

    # What is said

    def _tell(self, stage: NextTrainings, expected: float) -> None:
        so_far = f"{duration(self.spent)} spent" if self.choices.made else "start"
        self._say(
            f"{so_far}: {_interval(self.prediction)}; next {_counts(stage.trials)}, {_about(expected)}; {stage.words}"
        )

    def _result(self, why: str, plans: bool = True) -> SweepResult:
        """why: the search ended. plans: whether to say what more would bring."""
        known = self.known
        study = self.study.at_sizes(sorted({*self.used, *(size for size in known.scores if size in self.lattice)}))
        on_axes = [size for size, of_size in known.scores.items() if len(of_size) >= POINTS]
        judged = self.study.at_sizes(on_axes)
        chosen = [trial for choice in self.choices.made for trial in choice.trials if known.has(*trial)]
        note = (
            f"spent {duration(self.spent)} on {_counts(chosen)}"
            if chosen
            else "nothing was trained: the rows were there"
        )
        lines = [note, why]
        if plans and not self._reached and self.law:
            lines.append(self._to_go_on(known, self.law))
        if self.prediction:
            lines.append(self._next(self.prediction))
        return SweepResult(
            known.table,
            [] if self._rates else judge(known.table, judged),
            study,
            self.workdir,
            "\n".join(lines),
            self.law.law if self.law else None,
            self.prediction,
            {column(key): value for key, value in self._values(self.prediction).items()} if self.prediction else {},
        )

    def _next(self, p: Prediction) -> str:
        """The command, or the call, that trains the target."""
        study, values, size = self.study, self._values(p), Size(**self.target)
        optimizer = study.sweep.optimizers[0]
        if isinstance(study, ModelStudy):
            return study.call(size.width, size.depth, values, optimizer)
        assert isinstance(study, ConfigStudy)
        tuned = flat(study.settings)
        target = flat(study.point_at(size, optimizer, study.sweep.parameterizations[0]).settings)
        flags = {f"config.{key}": value for key, value in target.items() if value != tuned[key]}
        flags |= {f"config.{key}": f"{value:.4g}" for key, value in values.items()}
        return changed(self._command, "tune", "train", {**flags, "expect": f"{p.loss_low:.4g},{p.loss_high:.4g}"})

    def _values(self, p: Prediction) -> dict[str, float]:
        """{key: value} of what was tuned for the target, by this search and by the one before."""
        searched = {self.study.searched: judged_value(self.study.searched, p.learning_rate)}
        return {LEARNING_RATE: self._rates(Size(**self.target)), **searched} if self._rates else searched

    def course(self) -> Course | None:
        """The answers before each choice, and the last one. None without an answer."""
        if self.prediction is None:
            return None
        points = [(choice.spent, choice.answer) for choice in self.choices.made if choice.trials and choice.answer]
        spent, answers = zip(*points, (self.spent, _answer(self.prediction)), strict=True)
        trained = collections.Counter[Size]()
        for (size, _), seeds in self.known.seeds.items():
            trained[size] += len(seeds)
        return Course(self._words, spent, answers, self.tolerance, trained, self._next(self.prediction))

    def _to_go_on(self, known: Known, law: SweepLaw) -> str:
        candidates = self._candidates(known, law)
        if not candidates:
            return "no training at a smaller size would help: give a larger base, or train nearer to the target"
        seconds = max(self.spent, candidates[0]["cost"])
        again = self._expectation(law, [c for c in candidates if c["cost"] <= seconds], seconds)
        total = duration(self.spent + seconds)
        text = f"to go on: budget= of {total} in all is expected to bring it to {percent(again.worst_cost)}"
        return text if again.worst_cost <= self.tolerance else f"{text}; {self._far(law, candidates)}"

    def _far(self, law: SweepLaw, candidates: Sequence[Mapping[str, Any]]) -> str:
        """What the tolerance would take."""
        far = self._expectation(law, candidates, math.inf)
        if far.worst_cost <= self.tolerance:
            return f"{percent(self.tolerance)} would take {far} from here"
        return (
            f"{percent(self.tolerance)} is far: {far} from here are expected to bring it to {percent(far.worst_cost)}"
        )


def _thinned(items: Sequence[Any], count: int) -> list[Any]:
    """At most so many of the items, evenly, the first and the last among them."""
    places = np.linspace(0, len(items) - 1, min(len(items), count)).round().astype(int)
    return [items[i] for i in places.tolist()]


def _again(candidates: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The candidates, and each with another seed."""
    return [*candidates, *({**c, "seed": c["seed"] + 1} for c in candidates)]


def _answer(p: Prediction) -> Answer:
    return Answer(p.learning_rate, p.low, p.high, p.cost, p.worst_cost)


def _interval(p: Prediction | None) -> str:
    if p is None:
        return "no law yet"
    value = f"{p.hyperparameter.replace('_', ' ')} {p.learning_rate:.3g} [{p.low:.3g}, {p.high:.3g}]"
    return f"{value}, cost {p.at_worst}"


def _about(seconds: float) -> str:
    return f"about {math.ceil(seconds)} s" if seconds < 60 else about(seconds)


def _counts(trials: Sequence[tuple[Size, float, int]]) -> str:
    """The trainings at each size, in words."""
    counts = dict[Size, int]()
    for size, _, _ in trials:
        counts[size] = counts.get(size, 0) + 1
    of_sizes = [f"{count} at {size}" for size, count in sorted(counts.items(), key=lambda of: of[0].compute)]
    shown = [*of_sizes[:4], *([f"{len(of_sizes) - 4} more sizes"] if len(of_sizes) > 4 else [])]
    return f"{len(trials)} training{'s' * (len(trials) != 1)} ({', '.join(shown)})"

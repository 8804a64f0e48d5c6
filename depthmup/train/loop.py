"""The training loop. It trains trials of one shape together, one stretch (some steps) at a time.

A lone run is a loop of one trial. `drive` is the one way through a training: around the stretches, what a run or a
group of trials hooks in.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.data.feed import Feed
from depthmup.data.pipeline import part_of
from depthmup.rules.specs import PyTree
from depthmup.train.checkpoint import Checkpoints
from depthmup.train.devices import Placement
from depthmup.train.divergence import NEVER, diverged, going
from depthmup.train.step import FOREVER, Batch, Hyper, Trainable, TrainState
from depthmup.train.stop import Stop, Stopped

Report = Callable[[int, dict[str, np.ndarray]], None]
CHUNK = 64  # largest number of steps in one call of a program
SAVE, STOP = 1, 2  # what `Hooks.asked` may ask for
AHEAD = 2  # steps or batches that the host may hand over before the devices have computed the earlier ones


class Measurement(NamedTuple):
    """function: (state, hyper, batch) of one trial -> {name: array}. batch: the examples for this function."""

    function: Callable[..., dict[str, jax.Array]]
    batch: Any


class Stretch(NamedTuple):
    """Some steps of training, which the devices have been given and may not have finished.

    step: number of steps that are done after this stretch.
    state: state of the trials after this stretch, on the devices. The next stretch reuses its buffers, so do not read
      it later.
    read: waits for the devices and returns the metrics of each step ("loss", "grad_norm", "learning_rate", ...),
      (trials, steps) each.
    """

    step: int
    state: PyTree
    read: Callable[[], dict[str, np.ndarray]]


class Reader:
    """Reads the metrics of a stretch only after the devices have the next stretch, so that no device waits meanwhile.

    take: is called with the number of steps done and the metrics of the stretch.
    """

    def __init__(self, take: Report) -> None:
        self._take = take
        self._unread: Stretch | None = None

    def follow(self, stretch: Stretch) -> None:
        """Read the previous stretch, and remember this one."""
        self.catch_up()
        self._unread = stretch

    def catch_up(self) -> None:
        """Read the remembered stretch, if there is one."""
        if self._unread:
            stretch, self._unread = self._unread, None
            self._take(stretch.step, stretch.read())


def stretch_ends(steps: int, *every: int | None, also: Iterable[int] = (), start: int = 0) -> list[int]:
    """The steps, after `start`, at which stretches end: multiples of each `every`, the steps in `also`, and `steps`."""
    wanted = {steps, *also}
    for interval in filter(None, every):
        wanted.update(range(interval, steps, interval))
    return sorted(step for step in wanted if start < step <= steps)


class TrialLoop:
    """The programs of a task on a feed. They are compiled once and then train any number of groups of trials.

    Data that fit in memory lie on the devices. One program takes up to CHUNK steps: it picks batches, augments and
    trains, and the host does nothing per step. For data on disk a program takes one step, and the host hands it the
    batch.

    placement: how trials, or the parts of a batch, are split over devices (train.devices).
    waited: upper bound of the seconds in which the devices had nothing to do because the host was getting a batch.

    Raises ValueError if a batch cannot be split evenly.
    """

    def __init__(
        self, task: Trainable, batches: Feed, placement: Placement, measurement: Measurement | None = None
    ) -> None:
        self.task, self.batches, self.placement = task, batches, placement
        self.waited = 0.0
        self._last: PyTree = None  # metrics of the last step that the devices were given
        parts = placement.parts
        if batches.batch_size % parts:
            raise ValueError(f"a batch of {batches.batch_size} cannot be split evenly over {parts} devices")
        self._part = part_of(batches.batch_size, placement.shard)
        self._places = np.arange(batches.batch_size, dtype=np.int32)[self._part]
        # Placements, the shapes of the metrics and the loop over steps share what is traced once for a task. Inlined,
        # it leaves no mark in the programs.
        self._task_step, self._task_evaluate = (jax.jit(f, inline=True) for f in (task.step, task.evaluate))
        self._init = placement.over(jax.jit(task.init, inline=True), trial=1)
        self._evaluate = placement.over(self._evaluate_one, trial=2, batch=1)
        # What is measured knows nothing of parts of a batch: every device has all examples of it.
        self._measure = placement.over(measurement.function, trial=2, shared=1) if measurement else None
        self._measured_on = measurement.batch if measurement else None
        if batches.in_memory:
            self._chunk = placement.over(self._chunk_of_one, trial=2, batch=1, shared=3, donate=True)
        else:
            self._step = placement.over(self._step_of_one, trial=2, batch=1, shared=1, donate=True)

    def start(self, hypers: Sequence[Hyper], restored: PyTree = None) -> tuple[PyTree, PyTree]:
        """(state, hyper) of the trials, on the devices.

        restored: the state to go on from, as NumPy arrays (trials, ...). None: start at the first step.
        """
        if len(hypers) != self.placement.trials:
            raise ValueError(f"this loop is compiled for {self.placement.trials} trials, got {len(hypers)}")
        hyper = self.placement.put([h.arrays() for h in hypers])
        if restored is None:
            return self._init(hyper), hyper
        trials = [jax.tree.map(lambda leaf, i=i: leaf[i], restored) for i in range(len(hypers))]
        return self.placement.put(trials), hyper

    def close(self) -> None:
        """Free the training data on the devices. Programs of `jax.pmap`, and with them the loop, stay until the caches
        of JAX are cleared."""
        self.__dict__.pop("_resident", None)
        self._last = None

    def state_shapes(self, hypers: Sequence[Hyper]) -> PyTree:
        """Shapes and types of the trials' state, (trials, ...) each. A checkpoint must have the same."""
        one = jax.eval_shape(self.task.init, hypers[0].arrays())
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((len(hypers), *leaf.shape), leaf.dtype), one)

    def program(self, hyper: Hyper) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """(the compiled function of the training steps, the shapes of its arguments), for `.lower` and `.compile`.

        Nothing is put on a device, so the placement's devices may be only described. The function takes up to CHUNK
        steps of data in memory, and one step of data on disk.
        """
        place, arrays, places = self.placement, hyper.arrays(), self._places
        state, number = jax.eval_shape(self.task.init, arrays), place.shape(np.int32(0))
        trial = place.shapes(state), place.shapes(arrays)
        if self.batches.in_memory:
            indices = jax.ShapeDtypeStruct((len(places), CHUNK), np.int32)
            resident = jax.tree.map(place.shape, self.batches.resident())
            return self._chunk, (*trial, place.spread_shapes((places, indices)), resident, number, number)
        batch = place.spread_shapes((places, self.batches.raw_shapes(len(places))))
        return self._step, (*trial, batch, number)

    def stretches(self, state: PyTree, hyper: PyTree, start: int, ends: Iterable[int]) -> Iterator[Stretch]:
        """Train from step `start` on, one stretch up to each step in `ends`.

        A stretch is yielded as soon as the devices have it to do, before they have finished it. A caller that reads a
        stretch only after the next one is yielded keeps no device waiting (`Reader`).
        """
        # Closing the source stops the workers that load data.
        with contextlib.closing(self.batches.train(start, FOREVER, self.placement.shard)) as source:
            advance = self._chunks if self.batches.in_memory else functools.partial(self._steps, source)
            for end in ends:
                state, parts = advance(state, hyper, start, end)
                yield Stretch(end, state, functools.partial(self._read, parts))
                start = end

    def run(
        self, hypers: Sequence[Hyper], steps: int, every: int | None = None, report: Report | None = None
    ) -> dict[str, np.ndarray]:
        """Train all trials for `steps` steps and return their `results`.

        report: is called after every `every` steps with the number of steps done and the metrics since the last call.
        """
        state, hyper = self.start(hypers)
        reader = Reader(report or (lambda step, metrics: None))
        for stretch in self.stretches(state, hyper, 0, stretch_ends(steps, every)):
            state = stretch.state
            reader.follow(stretch)
        reader.catch_up()
        return self.results(state, hyper)

    def evaluate(self, state: PyTree, hyper: PyTree, split: Any) -> dict[str, np.ndarray]:
        """What the task evaluates ("loss", "accuracy"), over a split of the feed, (trials,) each."""
        queue: deque[PyTree] = deque()
        total: Any = None

        def add(total: Any, sums: PyTree) -> Any:
            sums = jax.tree.map(lambda leaf: leaf.astype(np.float64), self.placement.get(sums))
            return sums if total is None else jax.tree.map(np.add, total, sums)

        for batch in self.batches.evaluated(split, self.placement.parts, self.placement.shard):
            queue.append(self._evaluate(state, hyper, self.placement.spread(batch)))
            if len(queue) > AHEAD:
                total = add(total, queue.popleft())
        for sums in queue:
            total = add(total, sums)
        names = sorted(total, key=lambda name: name != "loss")  # the loss first, in rows and in logs
        return {name: np.asarray(total[name].compute(), np.float32) for name in names}

    def results(self, state: PyTree, hyper: PyTree) -> dict[str, np.ndarray]:
        """The metrics of a state at the end of training, each (trials,).

        The prefixes "validation_" and "test_" mark the metrics of these splits; those of the training split, "loss" and
        "accuracy", have none. "diverged" is that of train/divergence.py. Where the feed has no training split,
        "first_loss" is that of the first batch, and "diverged" says whether the trial is frozen alone.
        The losses of a frozen trial are NaN.
        """
        result: dict[str, np.ndarray] = {}
        halted = self.halted(state) != NEVER
        for prefix, split in self.batches.splits.items():
            values = self.evaluate(state, hyper, split)
            values["loss"] = np.where(halted, np.float32(np.nan), values["loss"])
            result |= {prefix + name: value for name, value in values.items()}
        first = self.placement.get(state.first_loss)
        if "loss" in result:
            return {**result, "diverged": diverged(halted, result["loss"], first)}
        return {**result, "first_loss": first, "diverged": halted}

    def measure(self, state: PyTree, hyper: PyTree) -> dict[str, np.ndarray]:
        """The measured arrays of all trials, (trials, ...) each. They are NaN for a trial that has diverged."""
        assert self._measure is not None
        values = self.placement.get(self._measure(state, hyper, self._measured_on))
        good = self.halted(state) == NEVER
        return {k: np.where(good.reshape(-1, *[1] * (v.ndim - 1)), v, np.nan) for k, v in values.items()}

    def halted(self, state: PyTree) -> np.ndarray:
        """`TrainState.halted` of every trial."""
        return self.placement.get(state.halted)

    @functools.cached_property
    def _resident(self) -> PyTree:
        """The training examples in memory, on every device."""
        return self.placement.replicate(self.batches.resident())

    def _step_of_one(self, state: TrainState, hyper: Hyper, batch: Any, number: Any) -> tuple[TrainState, Any]:
        """A training step of one trial on a raw batch."""
        places, raw = batch
        return self._task_step(state, self.batches.prepared(raw, number, places), hyper)

    def _chunk_of_one(
        self, state: TrainState, hyper: Hyper, order: Any, resident: Any, first: Any, count: Any
    ) -> tuple[TrainState, Any]:
        """Up to CHUNK steps of one trial. Metrics are (CHUNK,), with NaN for steps that were not taken.

        The number of steps is traced, so that a shorter stretch, say before an evaluation, needs no other program.
        """
        places, indices = order

        def at(i: Any, state: TrainState) -> tuple[TrainState, Any]:
            raw = self.batches.pick(resident, indices[:, i], first + i)
            return self._step_of_one(state, hyper, (places, raw), first + i)

        def next_step(i: Any, carry: tuple[TrainState, Any]) -> tuple[TrainState, Any]:
            state, metrics = at(i, carry[0])
            return state, jax.tree.map(lambda all, one: all.at[i].set(one), carry[1], metrics)

        shapes = jax.eval_shape(at, 0, state)[1]
        metrics = jax.tree.map(lambda leaf: jnp.full((CHUNK, *leaf.shape), jnp.nan, leaf.dtype), shapes)
        if not self.placement.skips_frozen:
            return jax.lax.fori_loop(0, count, next_step, (state, metrics))

        def more(carry: Any) -> jax.Array:
            return (carry[0] < count) & going(carry[1], hyper)

        done, state, metrics = jax.lax.while_loop(
            more, lambda carry: (carry[0] + 1, *next_step(carry[0], carry[1:])), (jnp.int32(0), state, metrics)
        )
        return state._replace(step=state.step + count - done), metrics

    def _evaluate_one(self, state: TrainState, hyper: Hyper, batch: Any) -> Any:
        return self._task_evaluate(state, self.batches.prepared(batch), hyper)

    def _chunks(self, state: Any, hyper: Any, start: int, end: int) -> tuple[Any, list[Any]]:
        """Take steps start..end-1 on data in memory: (state, [(metrics, steps) of each call] for `_read`)."""
        parts = []
        for first in range(start, end, CHUNK):
            count = min(CHUNK, end - first)
            indices = np.zeros((len(self._places), CHUNK), np.int32)
            indices[:, :count] = self.batches.indices(first, first + count)[:, self._part].T
            order = self.placement.spread((self._places, indices))
            state, metrics = self._chunk(state, hyper, order, self._resident, np.int32(first), np.int32(count))
            parts.append((metrics, count))
        return state, parts

    def _steps(self, source: Iterator[Batch], state: Any, hyper: Any, start: int, end: int) -> tuple[Any, list[Any]]:
        """Like `_chunks`, for data on disk: one call for each step, with at most AHEAD steps not yet computed."""
        parts: list[Any] = []
        for number in range(start, end):
            before = time.perf_counter()
            batch = self.placement.spread((self._places, next(source)))
            if all(leaf.is_ready() for leaf in jax.tree.leaves(self._last)):
                self.waited += time.perf_counter() - before
            state, self._last = self._step(state, hyper, batch, np.int32(number))
            parts.append((self._last, None))
            if len(parts) > AHEAD:
                jax.block_until_ready(parts[-1 - AHEAD][0])
        return state, parts

    def _read(self, parts: list[Any]) -> dict[str, np.ndarray]:
        """Wait for the devices; the metrics of every step, (trials, steps) each."""
        stretches = []
        for metrics, count in parts:
            values = self.placement.get(metrics)
            stretches.append({k: v[:, None] if count is None else v[:, :count] for k, v in values.items()})
        return {name: np.concatenate([s[name] for s in stretches], axis=1) for name in stretches[0]}


class Hooks:
    """What happens around the steps of a training: saving and stopping here, reading and looking in a subclass.

    checkpoints: None: nothing is saved. stop: None: nothing asks to stop. saving: steps from one checkpoint to the
    next; None: they are not due by steps. looks: the steps after which `look` is called.
    """

    looks: Collection[int] = ()

    def __init__(
        self, checkpoints: Checkpoints | None = None, stop: Stop | None = None, saving: int | None = None
    ) -> None:
        self.checkpoints, self.stop, self.saving = checkpoints, stop, saving

    def read(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Take the metrics of a stretch that ends at `step`, (trials, steps) each. The devices have the next one."""

    def look(self, step: int, state: PyTree, hyper: PyTree) -> None:
        """Evaluate or measure the state after `step` steps. All metrics up to there have been read."""

    def asked(self) -> int:
        """What is asked for from outside: nothing (0), SAVE, or STOP, which saves too. Called once for each stretch."""
        if self.requested:
            return STOP
        return SAVE if self.checkpoints and self.checkpoints.overdue() else 0

    def due(self, step: int) -> bool:
        """Whether the state after `step` steps is to be saved without being asked for."""
        return bool(self.saving and step % self.saving == 0)

    def save(self, step: int, state: PyTree) -> None:
        """Begin to save the state, if there is a place for it."""

    def saved(self, step: int) -> bool:
        """Whether the state after `step` steps is saved; this waits for it."""
        return self.checkpoints is not None and self.checkpoints.has(step)

    def over(self) -> bool:
        """Whether all trials are frozen, so that no further step changes them."""
        return False

    @property
    def requested(self) -> signal.Signals | None:
        """The signal that asks to stop, if it came to this process."""
        return self.stop.requested if self.stop else None


def drive(
    loop: TrialLoop,
    hypers: Sequence[Hyper],
    ends: Sequence[int],
    hooks: Hooks,
    restored: tuple[int, PyTree] | None = None,
) -> tuple[PyTree, PyTree]:
    """Train to the last of `ends`, or until the hooks say that it is over: (state, hyper) on the devices.

    ends: the steps at which stretches end, rising. restored: (step, state as NumPy arrays) to go on from.

    Raises Stopped where the hooks ask for it, and what they raise.
    """
    begin, before = restored or (0, None)
    state, hyper = loop.start(hypers, before)
    if begin == 0 and 0 in hooks.looks:
        hooks.look(0, state, hyper)
    reader = Reader(hooks.read)
    for stretch in loop.stretches(state, hyper, begin, ends):
        step, state = stretch.step, stretch.state
        reader.follow(stretch)
        asked = hooks.asked()
        if step in hooks.looks:
            reader.catch_up()
            hooks.look(step, state, hyper)
        if step == ends[-1] or hooks.over():
            break
        if asked or hooks.due(step):
            reader.catch_up()
            hooks.save(step, state)
        if asked == STOP:
            raise Stopped.at(hooks.requested, step, hooks.saved(step))
    reader.catch_up()
    return state, hyper

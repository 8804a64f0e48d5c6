"""The one way through a training: around the loop's stretches, what a run or a group of trials hooks in."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from depthmup.rules.specs import PyTree
from depthmup.train.checkpoint import Checkpoints
from depthmup.train.loop import Reader, TrialLoop
from depthmup.train.step import Hyper
from depthmup.train.stop import Stop, Stopped

SAVE, STOP = 1, 2  # what `Hooks.asked` may ask for


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

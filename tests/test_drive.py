"""The one way through a training: in which order its hooks are called, and what ends it."""

import signal

import numpy as np
import pytest

from depthmup.train.loop import SAVE, STOP, Hooks, Stretch, drive
from depthmup.train.stop import Stopped

ENDS = [2, 4, 6]


class Loop:
    """Trains nothing: its state is the number of steps done. It notes what it is given to do."""

    def __init__(self, events):
        self.events = events

    def start(self, hypers, restored):
        self.events.append(("start", restored))
        return 0 if restored is None else restored, hypers

    def stretches(self, state, hyper, start, ends):
        for end in ends:
            self.events.append(("train", end))
            yield Stretch(end, end, lambda end=end: {"loss": np.full((1, 2), end)})


class Noted(Hooks):
    """looks, due: steps. asks: {step: what is asked for there}. over: the step from which on all is over."""

    requested = signal.SIGTERM

    def __init__(self, looks=(), asks=None, due=(), over=99):
        self.events, self.looks, self._due, self._over = [], looks, due, over
        self._asks, self._steps, self._step = asks or {}, iter(ENDS), 0

    def read(self, step, metrics):
        assert metrics["loss"].tolist() == [[step, step]]
        self.events.append(("read", step))

    def look(self, step, state, hyper):
        assert state == step
        self.events.append(("look", step))

    def asked(self):
        self._step = next(self._steps)
        return self._asks.get(self._step, 0)

    def due(self, step):
        return step in self._due

    def save(self, step, state):
        assert state == step
        self.events.append(("save", step))

    def saved(self, step):
        return ("save", step) in self.events

    def over(self):
        return self._step >= self._over


def driven(hooks, **options):
    """(what happened, one after another; what `drive` returned, or None where it was stopped)."""
    try:
        result = drive(Loop(hooks.events), ["hyper"], ENDS, hooks, **options)
    except Stopped:
        result = None
    return hooks.events, result


def test_metrics_are_read_when_the_next_stretch_is_given():
    events, result = driven(Noted())
    assert events == [("start", None), *happens("train 2, train 4, read 2, train 6, read 4, read 6")]
    assert result == (6, ["hyper"])


def happens(text):
    return [(word, int(step)) for word, step in map(str.split, text.split(", "))]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"looks": (0, 4)}, "look 0, train 2, train 4, read 2, read 4, look 4, train 6, read 6"),
        ({"looks": (4,), "due": (4,)}, "train 2, train 4, read 2, read 4, look 4, save 4, train 6, read 6"),
        ({"asks": {2: SAVE}}, "train 2, read 2, save 2, train 4, train 6, read 4, read 6"),
        ({"looks": (6,), "due": (6,), "asks": {6: STOP}}, "train 2, train 4, read 2, train 6, read 4, read 6, look 6"),
        ({"due": (4,), "asks": {4: STOP}, "over": 4}, "train 2, train 4, read 2, read 4"),
    ],
)
def test_the_order(options, expected):
    """Read, look, save; at the end of training, or once it is over, nothing is saved and no stop is met."""
    events, result = driven(Noted(**options))
    assert events[1:] == happens(expected)
    assert result is not None


def test_a_stop_saves_first():
    hooks = Noted(looks=(4,), asks={4: STOP})
    with pytest.raises(Stopped, match="stopped by SIGTERM at step 4: saved, the same command goes on from there"):
        drive(Loop(hooks.events), ["hyper"], ENDS, hooks)
    assert hooks.events[1:] == happens("train 2, train 4, read 2, read 4, look 4, save 4")
    hooks = Noted(asks={2: STOP})
    hooks.save = lambda step, state: None
    with pytest.raises(Stopped, match="at step 2: these steps are not saved"):
        drive(Loop(hooks.events), ["hyper"], ENDS, hooks)


def test_a_restored_training_is_not_looked_at_where_it_begins():
    hooks = Noted(looks=(0, 2))
    drive(Loop(hooks.events), ["hyper"], ENDS, hooks, restored=(2, "arrays"))
    assert hooks.events == [("start", "arrays"), *happens("train 2, read 2, look 2, train 4, train 6, read 4, read 6")]

"""The display of a running sweep: groups, trials per minute, time left."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Set

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from depthmup.trials.estimate import duration

EVERY = 10.0  # seconds between two lines where there is no terminal to draw on
PRIOR = 0.05  # the estimate starts as if this share of a sweep had taken the expected time
KNOWN = 0.1  # if nothing was measured before, the time left is shown after this share of the sweep
STEPS = (0, 10), (55, 60), (1200, 300), (3600, 600), (36000, 3600)  # (seconds from which a time is rounded, to so many)


@dataclasses.dataclass
class _Group:
    """A group of trials, as `TimeLeft` sees it. here: whether this process trains it, or has done so."""

    expected: float
    here: bool = False
    share: float = 0.0


class TimeLeft:
    """Estimates the time that is left: what remains of the expected time, times (elapsed + prior) / (done + prior).

    `done` is the expected time of all that is done, by other processes too. The prior is the share PRIOR of the
    expected time of the whole sweep, so that the estimate hardly changes while little is done. If no step was measured
    before the sweep, the prior is 0, and the time left is None until the share KNOWN of the sweep is done.
    """

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._measured = False
        self._start = self._heard = 0.0  # when the first group began; when a group last reported

    def expect(self, groups: Mapping[str, float], measured: bool) -> None:
        """Set the groups that are still to do. measured: whether the expected times are in seconds."""
        self.only(groups.keys())
        self._groups |= {name: _Group(expected) for name, expected in groups.items()}
        self._measured = measured

    def only(self, names: Set[str]) -> None:
        """Only these groups are still to do. Other groups are done, unless they run in this process."""
        for name in self._groups.keys() - names - self.running().keys():
            self._groups[name].share = 1.0

    def hear(self, name: str, share: float) -> None:
        """Note that a group of this process has begun, or that this share of it is done."""
        group = self._groups[name]
        group.here, group.share = True, share
        self._heard = time.monotonic()
        self._start = self._start or self._heard

    def running(self) -> dict[str, float]:
        """{name: share that is done} of the groups that run in this process."""
        return {name: group.share for name, group in list(self._groups.items()) if group.here and group.share < 1}

    def waiting(self) -> int:
        """The number of groups that are not done and that this process has not begun."""
        return sum(not group.here and group.share < 1 for group in list(self._groups.values()))

    def trained(self) -> tuple[float, float]:
        """Expected time of what is done, and of the whole."""
        groups = list(self._groups.values())  # a copy, since another thread draws the table
        return sum(group.share * group.expected for group in groups), sum(group.expected for group in groups)

    def seconds(self) -> float | None:
        """The seconds that are left; None while they are not known."""
        done, whole = self.trained()
        if not self._measured and done < KNOWN * whole:
            return None
        prior = PRIOR * whole if self._measured else 0.0
        slower = (self._heard - self._start + prior) / (done + prior) if done + prior else 1.0
        return max(0.0, slower * (whole - done) - (time.monotonic() - self._heard if self._start else 0.0))


def about(seconds: float) -> str:
    """Seconds in rounded words, for an estimate: "about 40 s", "about 4 min", "about 1 h 20 min"."""
    step = [step for start, step in STEPS if seconds >= start][-1]
    rounded = max(step, step * round(seconds / step))
    hours, minutes = divmod(rounded // 60, 60)
    words = [f"{hours} h"] * (hours > 0) + [f"{minutes} min"] * (minutes > 0)
    return f"about {' '.join(words) or f'{rounded} s'}"


class Progress:
    """Shows a live table on a terminal, elsewhere a line every ten seconds, and at the end a line on what was trained.

    silent: show nothing.
    watch: called at every news, with this object.
    """

    def __init__(
        self,
        silent: bool = False,
        console: Console | None = None,
        watch: Callable[[Progress], None] | None = None,
    ) -> None:
        self._watch = watch
        self._console = console or Console(quiet=silent)
        self.shown = not silent
        self._drawn = self._console.is_terminal and self.shown
        self._entered = self._said = time.monotonic()
        self._start = 0.0  # when the first groups to train were known
        self._time = TimeLeft()
        self._names: dict[str, str] = {}
        self._trials = self._groups = 0
        self._note = ""
        self._live = Live(console=self._console, get_renderable=self.table, refresh_per_second=4)

    def __enter__(self) -> Progress:
        if self._drawn:
            self._live.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._drawn:
            self._live.stop()
        if self._trials and error is None:
            self.say(f"trained {self._trials:,} trials in {duration(time.monotonic() - self._entered)}")

    def expect(self, groups: Mapping[str, float], measured: bool) -> None:
        """Set all groups that are still to do, by name. measured: as in `TimeLeft.expect`."""
        self._time.expect(groups, measured)
        self._start = self._start or time.monotonic()

    def only(self, names: Set[str]) -> None:
        """Only the groups with these names are still to do: other processes have done the rest."""
        self._time.only(names)

    def say(self, text: str) -> None:
        """Print a message that stays on the screen."""
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Set the text that is shown while no group runs here."""
        self._note = text
        self._now_and_then()

    def running(self, name: str, words: str, share: float) -> None:
        self._time.hear(name, share)
        self._names[name] = words
        self._now_and_then()

    def finished(self, name: str, trials: int) -> None:
        self._time.hear(name, 1.0)
        self._groups, self._trials = self._groups + 1, self._trials + trials
        self._now_and_then()

    def _now_and_then(self) -> None:
        """Call `watch`. Print a line every EVERY seconds, if there is no terminal to draw on."""
        if self._watch:
            self._watch(self)
        if not self._drawn and time.monotonic() - self._said > EVERY:
            self._said = time.monotonic()
            self.say(self.line() if self._time.running() or not self._note else f"{self.line()}; {self._note}")

    @property
    def share(self) -> float:
        """The share of the expected time that is done."""
        part, whole = self._time.trained()
        return part / whole if whole else 0.0

    def line(self) -> str:
        """One line with the groups, the trials per minute and the time left."""
        elapsed = time.monotonic() - self._start if self._start else 0.0
        left, running, waiting = self._time.seconds(), len(self._time.running()), self._time.waiting()
        remaining = "time left not known yet" if left is None else f"{about(left)} left"
        if self._start and not running + waiting:
            remaining = "nothing left"
        return (
            f"groups: {self._groups} done, {running} running, {waiting} to go; "
            f"{self._trials:,} trials, {60 * self._trials / max(elapsed, 1e-9):,.0f} a minute; {remaining}"
        )

    def table(self) -> RenderableType:
        """Everything that the terminal shows: bar, line, running groups."""
        part, whole = self._time.trained()
        bar = Table.grid()
        bar.add_row(ProgressBar(total=max(whole, 1e-9), completed=part, width=60))
        running = ", ".join(f"{self._names[n]} {100 * s:.0f}%" for n, s in self._time.running().items())
        return Group(bar, Text(self.line()), Text(running or self._note))

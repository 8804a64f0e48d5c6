"""The display of a running sweep: groups, trials per minute, time left."""

from __future__ import annotations

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


def about(seconds: float) -> str:
    """Seconds in rounded words, for an estimate: "about 40 s", "about 4 min", "about 1 h 20 min"."""
    step = [step for start, step in STEPS if seconds >= start][-1]
    rounded = max(step, step * round(seconds / step))
    hours, minutes = divmod(rounded // 60, 60)
    words = [f"{hours} h"] * (hours > 0) + [f"{minutes} min"] * (minutes > 0)
    return f"about {' '.join(words) or f'{rounded} s'}"


class Progress:
    """Shows a live table on a terminal, elsewhere a line every ten seconds, and at the end a line on what was trained.

    The time that is left is estimated as what remains of the expected time, times (elapsed + prior) / (done + prior).
    `done` is the expected time of all that is done, by other processes too. The prior is the share PRIOR of the
    expected time of the whole sweep, so that the estimate hardly changes while little is done. If no step was measured
    before the sweep, the prior is 0, and the time left is not known until the share KNOWN of the sweep is done.

    silent: show nothing.
    watch: called at every news, with this object. goes_on: whether results decide what is planned later.
    """

    def __init__(
        self,
        silent: bool = False,
        console: Console | None = None,
        watch: Callable[[Progress], None] | None = None,
        goes_on: bool = False,
    ) -> None:
        self._watch = watch
        self._of_what = " of what is planned so far" if goes_on else ""
        self._console = console or Console(quiet=silent)
        self.shown = not silent
        self._drawn = self._console.is_terminal and self.shown
        self._entered = self._said = time.monotonic()
        self._expected: dict[str, float] = {}  # time of each group
        self._shares: dict[str, float] = {}  # of each group that are done
        self._running = ""  # the group that this process trains
        self._elsewhere: int | None = None  # groups that run with the workers of an executor, as far as it tells
        self._measured = False
        self._start = self._heard = 0.0  # when the first group began; when a group last reported
        self._trials = self._done = 0
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
        """Add the groups that are still to do, {name: expected time}. measured: whether the times are in seconds."""
        self._expected |= groups
        self._shares |= dict.fromkeys(groups, 0.0)
        self._measured = measured

    def only(self, names: Set[str]) -> None:
        """Only the groups with these names are still to do: other processes have done the others."""
        self._shares |= dict.fromkeys(self._shares.keys() - names, 1.0)

    def say(self, text: str) -> None:
        """Print a message that stays on the screen."""
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Set the text that is shown while no group runs here."""
        self._note = text
        self._now_and_then()

    def elsewhere(self, groups: int) -> None:
        """So many groups run with the workers of an executor, who tell nothing before they are done."""
        self._elsewhere = groups
        if self._expected:
            self._start = self._start or time.monotonic()
        self._now_and_then()

    def running(self, name: str, words: str, share: float) -> None:
        """The group that this process trains has begun, or this share of it is done."""
        self._heard, self._shares[name] = time.monotonic(), share
        self._running = f"{words} {100 * share:.0f}%" if share < 1 else ""
        self._start = self._start or self._heard
        self._now_and_then()

    def finished(self, name: str, trials: int) -> None:
        self._done, self._trials = self._done + 1, self._trials + trials
        if self._elsewhere:
            self._elsewhere -= 1
        self.running(name, "", 1.0)

    def _now_and_then(self) -> None:
        """Call `watch`. Print a line every EVERY seconds, if there is no terminal to draw on."""
        if self._watch:
            self._watch(self)
        if not self._drawn and time.monotonic() - self._said > EVERY:
            self._said = time.monotonic()
            self.say(self.line() if self._running or not self._note else f"{self.line()}; {self._note}")

    @property
    def share(self) -> float:
        """The share of the expected time that is done."""
        done, whole = self._trained()
        return done / whole if whole else 0.0

    def seconds(self) -> float | None:
        """The seconds that are left; None while they are not known."""
        done, whole = self._trained()
        if not self._measured and done < KNOWN * whole:
            return None
        prior = PRIOR * whole if self._measured else 0.0
        slower = (self._heard - self._start + prior) / (done + prior) if done + prior else 1.0
        return max(0.0, slower * (whole - done) - (time.monotonic() - self._heard if self._start else 0.0))

    def waiting(self) -> int:
        """The number of groups that are not done and that this process has not begun."""
        return sum(share < 1 for share in list(self._shares.values())) - self._at_work

    @property
    def _at_work(self) -> int:
        """The number of groups that run."""
        return self._elsewhere or int(bool(self._running))

    def _trained(self) -> tuple[float, float]:
        """Expected time of what is done, and of the whole."""
        shares, expected = dict(self._shares), dict(self._expected)  # copies, since another thread draws the table
        return sum(share * expected[name] for name, share in shares.items()), sum(expected.values())

    def line(self) -> str:
        """One line with the groups, the trials per minute and the time left."""
        elapsed = time.monotonic() - self._start if self._start else 0.0
        left, running, waiting = self.seconds(), self._at_work, self.waiting()
        running_words = "" if self._elsewhere == 0 else f"{running} running, "
        if self._start and not running + waiting:
            remaining = f"nothing left{self._of_what}"
        else:
            remaining = "time left not known yet" if left is None else f"{about(left)} left{self._of_what}"
        return (
            f"groups: {self._done} done, {running_words}{waiting} to go; "
            f"{self._trials:,} trials, {60 * self._trials / max(elapsed, 1e-9):,.0f} a minute; {remaining}"
        )

    def table(self) -> RenderableType:
        """Everything that the terminal shows: bar, line, running groups."""
        bar = Table.grid()
        bar.add_row(ProgressBar(total=1.0, completed=self.share, width=60))
        return Group(bar, Text(self.line()), Text(self._running or self._note))

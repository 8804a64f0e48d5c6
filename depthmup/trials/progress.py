"""The display of a running sweep: groups, trials per minute, time left, the best learning rate so far at every size."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Set

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from depthmup.trials.estimate import duration
from depthmup.trials.study import Row

EVERY = 10.0  # seconds between two lines where there is no terminal to draw on
LINES = 24  # most lines of the table of best learning rates
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

    rows: the rows that the sweep has already.
    silent: show nothing.
    watch: called at every news, with this object.
    """

    def __init__(
        self,
        rows: Iterable[Row],
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
        # (optimizer, parameterization) -> (width, depth) -> learning rate -> losses of its seeds and other axes
        self.losses: dict[tuple[str, str], dict[tuple[int, ...], dict[float, list[float]]]] = {}
        self._note = ""
        self._take(rows)
        self._live = Live(console=self._console, get_renderable=self.table, refresh_per_second=4)

    def __enter__(self) -> Progress:
        if self._drawn:
            self._live.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._drawn:
            self._live.stop()
        if self._trials and error is None:
            self.say(self.summary())

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

    def finished(self, name: str, rows: Iterable[Row]) -> None:
        rows = list(rows)
        self._time.hear(name, 1.0)
        self._groups, self._trials = self._groups + 1, self._trials + len(rows)
        self._take(rows)
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

    def summary(self) -> str:
        """The number of trials that this process has trained, and the time that it took, in words."""
        return f"trained {self._trials:,} trials in {duration(time.monotonic() - self._entered)}"

    def table(self) -> RenderableType:
        """Everything that the terminal shows: bar, line, running groups, table of best learning rates."""
        part, whole = self._time.trained()
        bar = Table.grid()
        bar.add_row(ProgressBar(total=max(whole, 1e-9), completed=part, width=60))
        parts: list[RenderableType] = [
            bar,
            Text(self.line()),
            Text(", ".join(f"{self._names[n]} {100 * s:.0f}%" for n, s in self._time.running().items()) or self._note),
        ]
        return Group(*parts, self.best_table())

    def best_table(self) -> RenderableType:
        """log2 of the best learning rate so far and its mean loss over seeds, per width x depth (and steps x batch)."""
        sizes = sorted({size for of_sizes in self.losses.values() for size in of_sizes})
        if not sizes:
            return Text("")
        table = Table(title="best so far: log2 learning rate, loss", title_justify="left", box=None, padding=(0, 1))
        for name in ("optimizer", "parameterization"):
            table.add_column(name)
        runs = len({size[2:] for size in sizes}) > 1
        for width, depth, batch, steps in sizes:
            run = f" {steps} x {batch}" if runs else ""
            table.add_column(f"{width} x {depth}{run}", justify="right")
        for names, of_sizes in list(self.losses.items())[:LINES]:
            table.add_row(*map(Text, names), *(_best(of_sizes.get(size, {})) for size in sizes))
        return table

    def _take(self, rows: Iterable[Row]) -> None:
        for row in rows:
            loss = math.inf if row["loss"] is None or row["diverged"] else row["loss"]
            of_sizes = self.losses.setdefault((row["optimizer"], row["parameterization"]), {})
            size = row["width"], row["depth"], row.get("batch_size", 0), row.get("steps", 0)
            of_sizes.setdefault(size, {}).setdefault(row["learning_rate"], []).append(loss)


def _best(of_rates: Mapping[float, list[float]]) -> str:
    means = {rate: sum(losses) / len(losses) for rate, losses in of_rates.items()}
    best = min(means, key=lambda rate: means[rate], default=None)
    return f"{math.log2(best):.1f} {means[best]:.3f}" if best and math.isfinite(means[best]) else ""

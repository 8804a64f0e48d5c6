"""What a sweep says while it runs: groups, trials per minute, time left, the best so far at every size."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from depthmup.sweep.estimate import duration
from depthmup.train.workdir import Row

EVERY = 10.0  # seconds between two lines where there is no terminal to draw on
LINES = 24  # of the table of the best, at most


class Progress:
    """A live table on a terminal; elsewhere a line every ten seconds. Silent if told so.

    It is told how long each group is expected to take, which need only be right in proportion.
    """

    def __init__(self, rows: Iterable[Row], silent: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(quiet=silent)
        self.shown = not silent
        self._drawn = self._console.is_terminal and self.shown
        self._said = time.monotonic()
        self._start = 0.0  # when there was something to do
        self._shares: dict[str, float] = {}  # of the groups that are running
        self._names: dict[str, str] = {}
        self._expected: dict[str, float] = {}
        self._spent = 0.0  # expected time of what this process has done
        self._trials = self._groups = 0
        # (optimizer, parameterization) -> (width, depth) -> learning rate -> losses of its seeds and other axes
        self.losses: dict[tuple[str, str], dict[tuple[int, int], dict[float, list[float]]]] = {}
        self._note = ""
        self._take(rows)
        self._live = Live(console=self._console, get_renderable=self.table, refresh_per_second=4)

    def __enter__(self) -> Progress:
        if self._drawn:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._live.stop()

    def expect(self, groups: Mapping[str, float]) -> None:
        """All groups that are still to do: name -> expected seconds, at least in proportion."""
        self._expected, self._shares = dict(groups), {}
        self._start = self._start or time.monotonic()

    def say(self, text: str) -> None:
        """A message that stays."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """What is going on besides."""
        self._note = text
        self._now_and_then()

    def running(self, name: str, words: str, share: float) -> None:
        self._shares[name], self._names[name] = share, words
        self._now_and_then()

    def finished(self, name: str, rows: Iterable[Row]) -> None:
        rows = list(rows)
        self._shares.pop(name, None)
        self._spent += self._expected.pop(name, 0.0)
        self._groups, self._trials = self._groups + 1, self._trials + len(rows)
        self._take(rows)
        self._now_and_then()

    def _now_and_then(self) -> None:
        """A line, where there is no terminal to draw on."""
        if not self._drawn and time.monotonic() - self._said > EVERY:
            self._said = time.monotonic()
            self.say(self.line() if self._shares or not self._note else f"{self.line()}; {self._note}")

    def _parts(self) -> tuple[float, float]:
        """Expected seconds of what is done, and of all."""
        running = sum(share * self._expected.get(name, 0.0) for name, share in self._shares.items())
        return self._spent + running, self._spent + sum(self._expected.values())

    def line(self) -> str:
        """Groups, trials per minute, time left."""
        elapsed = time.monotonic() - self._start if self._start else 0.0
        part, whole = self._parts()
        left = whole - part
        remaining = f"{duration(elapsed * left / part)} left" if part else "time left not known yet"
        waiting = len(self._expected) - len(self._shares)
        return (
            f"groups: {self._groups} done, {len(self._shares)} running, {max(0, waiting)} to go; "
            f"{self._trials:,} trials, {60 * self._trials / max(elapsed, 1e-9):,.0f} a minute; {remaining}"
        )

    def table(self) -> RenderableType:
        """The whole picture."""
        part, whole = self._parts()
        bar = Table.grid()
        bar.add_row(ProgressBar(total=max(whole, 1e-9), completed=part, width=60))
        parts: list[RenderableType] = [
            bar,
            Text(self.line()),
            Text(", ".join(f"{self._names[n]} {100 * share:.0f}%" for n, share in self._shares.items()) or self._note),
        ]
        return Group(*parts, self.best_table())

    def best_table(self) -> RenderableType:
        """log2 of the best learning rate so far and its mean loss over seeds, per size."""
        sizes = sorted({size for of_sizes in self.losses.values() for size in of_sizes})
        if not sizes:
            return Text("")
        table = Table(title="best so far: log2 learning rate, loss", title_justify="left", box=None, padding=(0, 1))
        for name in ("optimizer", "parameterization"):
            table.add_column(name)
        for width, depth in sizes:
            table.add_column(f"{width} x {depth}", justify="right")
        for names, of_sizes in list(self.losses.items())[:LINES]:
            table.add_row(*names, *(_best(of_sizes.get(size, {})) for size in sizes))
        return table

    def _take(self, rows: Iterable[Row]) -> None:
        for row in rows:
            loss = math.inf if row["loss"] is None or row["diverged"] else row["loss"]
            of_sizes = self.losses.setdefault((row["optimizer"], row["parameterization"]), {})
            of_sizes.setdefault((row["width"], row["depth"]), {}).setdefault(row["learning_rate"], []).append(loss)


def _best(of_rates: Mapping[float, list[float]]) -> str:
    means = {rate: sum(losses) / len(losses) for rate, losses in of_rates.items()}
    best = min(means, key=lambda rate: means[rate], default=None)
    return f"{math.log2(best):.1f} {means[best]:.3f}" if best and math.isfinite(means[best]) else ""

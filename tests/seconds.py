"""Where the time of the tests goes, by file and by kind: the table of docs/notes.md.

    python -m pytest -p tests.seconds -n 2 --dist worksteal -m "not slow and not pods"

JAX tells how long it traces, lowers and compiles (`jax.monitoring`); an event inside another one counts once, for its
own kind. What is left of a test is Python and running. Importing and collecting come before the first test.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import jax
import pytest

KINDS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
COLUMNS = (*KINDS.values(), "rest")
PROPERTY = "seconds"  # of the report of a test's teardown: {kind: seconds}
MOST = 25  # files in the table


class Events:
    """Seconds by kind: the length of each event without the events inside it, which end before it does."""

    def __init__(self) -> None:
        self.seconds = Counter[str]()
        self._ended: list[tuple[float, float]] = []  # (start, seconds) of events that no other has contained so far

    def __call__(self, event: str, seconds: float, **_: Any) -> None:
        if event not in KINDS:
            return
        start, inside = time.perf_counter() - seconds, 0.0
        while self._ended and self._ended[-1][0] >= start:
            inside += self._ended.pop()[1]
        self._ended.append((start, seconds))
        self.seconds[KINDS[event]] += seconds - inside

    def take(self) -> dict[str, float]:
        """The seconds since the last call."""
        seconds, self.seconds = self.seconds, Counter()
        self._ended.clear()
        return dict(seconds)


class Seconds:
    """The plugin: a worker measures, the process that started it prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._events, self._start = config, Events(), time.perf_counter()
        self._files = defaultdict[str, Counter[str]](Counter)
        self._collecting = list[float]()
        jax.monitoring.register_event_duration_secs_listener(self._events)

    def pytest_collection_finish(self) -> None:
        collecting = time.perf_counter() - self._start
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["collecting"] = collecting
        else:
            self._collecting.append(collecting)
        self._events.take()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        report = yield
        if report.when == "teardown":
            report.user_properties.append((PROPERTY, self._events.take()))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        of_file = self._files[report.nodeid.partition("::")[0]]
        of_file["all"] += report.duration
        of_file["tests"] += report.when == "call"
        for name, value in report.user_properties if report.when == "teardown" else ():
            if name == PROPERTY:
                of_file.update(value)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._collecting.append(node.workeroutput["collecting"])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = sum(self._files.values(), Counter[str]())
        files = sorted(self._files.items(), key=lambda pair: -pair[1]["all"])
        rows = [("all files", total), *files[:MOST]]
        terminalreporter.write_line(
            f"\n| file | tests | seconds | {' | '.join(COLUMNS)} |\n|{'---|' * (3 + len(COLUMNS))}"
        )
        for name, seconds in rows:
            seconds["rest"] = seconds["all"] - sum(seconds[kind] for kind in KINDS.values())
            cells = " | ".join(f"{seconds[kind]:.0f}" for kind in ("all", *COLUMNS))
            terminalreporter.write_line(f"| {name.removeprefix('tests/')} | {seconds['tests']} | {cells} |")
        collecting = ", ".join(f"{seconds:.0f}" for seconds in self._collecting)
        terminalreporter.write_line(f"importing and collecting, in each process: {collecting} s")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Seconds(config))

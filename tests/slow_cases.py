"""Which cases of the tests `make test-slow` has for their time alone: those of slow_cases.txt, which one rule makes.

    python -m pytest -p tests.slow_cases -n 2 --dist worksteal -m "not slow and not pods"      # writes slow_cases.txt

`make test` keeps of each test with several cases the shortest one and those below MOST_OF_A_CASE, and of the others
those below MOST_OF_A_TEST, in seconds of CPU.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

MOST_OF_A_CASE, MOST_OF_A_TEST = 0.4, 4.5
FILE = Path(__file__).with_suffix(".txt")
PROPERTY = "CPU"  # of the report of a test's teardown: its seconds
MEASURED = "tests.slow_cases"  # the plugin's name: while it measures, no case is left out


def mark(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is too long for `make test`."""
    if config.pluginmanager.hasplugin(MEASURED):
        return
    cases = set(FILE.read_text().splitlines())
    for item in items:
        if item.nodeid in cases:
            item.add_marker(pytest.mark.slow)


def chosen(seconds: Mapping[str, float]) -> list[str]:
    """The cases that are too long, sorted. seconds: {node id: CPU seconds}."""
    tests = defaultdict[str, list[str]](list)
    for case in sorted(seconds, key=lambda case: (seconds[case], case)):
        tests[case.partition("[")[0]].append(case)
    result = [case for cases in tests.values() for case in cases[1:] if seconds[case] > MOST_OF_A_CASE]
    result += [cases[0] for cases in tests.values() if seconds[cases[0]] > MOST_OF_A_TEST]
    return sorted(result)


def _cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class _Measured:
    def __init__(self) -> None:
        self._start, self._seconds = 0.0, dict[str, float]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[Any]:
        self._start = _cpu()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[Any]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((PROPERTY, _cpu() - self._start))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds.update((report.nodeid, value) for name, value in report.user_properties if name == PROPERTY)

    def pytest_sessionfinish(self) -> None:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            FILE.write_text("".join(f"{case}\n" for case in chosen(self._seconds)))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Measured())

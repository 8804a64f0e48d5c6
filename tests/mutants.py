"""Are the faults of mutants.toml still seen? Each is planted in a copy of the repository, where its tests are run.

    python -m tests.mutants [-k WORD] [--every N] [--jobs N] [--since RESULTS]

A fault replaces a text that occurs exactly once in its file. It is seen if its tests pass without it, and one of them
fails, crashes or hangs with it. Results are appended to .mutants.jsonl, so that an interrupted run goes on from there;
a change of the code makes all results out of date, a change of a fault or of a test those alone that it is part of. The
exit status is 1 if a fault is not seen.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAULTS = "tests/mutants.toml"
RESULTS = ROOT / ".mutants.jsonl"
TIMEOUT = 300.0  # seconds that the tests of a fault may take
SEEN, HUNG, SURVIVED = "seen", "seen, by a timeout", "SURVIVED"


@dataclasses.dataclass(frozen=True)
class Fault:
    """`old` is replaced by `new` in `file`. tests: node ids of pytest. slow: only tests marked as slow see it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    slow: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """result: SEEN, HUNG, SURVIVED, or why the fault could not be tried. code: hash of the repository and the fault."""

    name: str
    result: str
    seconds: float
    code: str

    @property
    def seen(self) -> bool:
        return self.result in (SEEN, HUNG)


class Copy:
    """A copy of the repository in which one fault at a time is planted."""

    def __init__(self, folder: Path, programs: Path) -> None:
        """programs: folder of compiled programs, so that a fault costs the compilation of what it changes alone."""
        self._folder = folder
        for name in tracked():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "JAX_COMPILATION_CACHE_DIR": str(programs),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        self._running: subprocess.Popen[bytes] | None = None

    def passes(self, tests: Sequence[str], slow: bool) -> bool:
        """Whether these tests pass without a fault."""
        return self._run(tests, slow, timeout=None) == 0

    def result(self, fault: Fault) -> str:
        """`Result.result` of a fault whose tests pass without it."""
        path = self._folder / fault.file
        content = path.read_text() if path.exists() else ""
        if content.count(fault.old) != 1:
            return f"cannot be tried: its file has the old text {content.count(fault.old)} times"
        self._write(path, content.replace(fault.old, fault.new))
        try:
            status = self._run(fault.tests, fault.slow, TIMEOUT)
        finally:
            self._write(path, content)
        if status is None:
            return HUNG
        if status > 1:  # an error before a test has begun, such as a fault that cannot be imported
            return f"cannot be tried: pytest ended with status {status}"
        return SURVIVED if status == 0 else SEEN

    def end(self) -> None:
        """End the tests that are running, and what they have started."""
        if self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)

    def _run(self, tests: Sequence[str], slow: bool, timeout: float | None) -> int | None:
        """The exit status of pytest, below 0 if a signal killed it; None if the tests take too long."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
        command += [] if slow else ["-m", "not slow"]
        self._running = subprocess.Popen(
            [*command, *tests],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a group of its own, so that processes which a test has started end with it
        )
        try:
            return self._running.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.end()
            self._running.wait()
            self._running = None

    def _write(self, path: Path, content: str) -> None:
        path.write_text(content)
        # Python tells a compiled module from that of another source by size and second alone.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()


@functools.cache
def tracked() -> tuple[str, ...]:
    """The files of the repository, relative to its root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(name for name in listed.split("\0") if name and (ROOT / name).is_file())


def faults() -> list[Fault]:
    """All faults of the list. Raises ValueError if two have the same name."""
    rows = tomllib.loads((ROOT / FAULTS).read_text())["fault"]
    result = [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    twice = [name for name, count in Counter(fault.name for fault in result).items() if count > 1]
    if twice:
        raise ValueError(f"{FAULTS} has two faults of the name {twice[0]!r}")
    return result


def hashes(chosen: Sequence[Fault]) -> dict[str, str]:
    """{name of a fault: hash of what its result depends on: the fault, its files of tests, and all else but tests}."""

    def content(name: str) -> bytes:
        return name.encode() + b"\0" + (ROOT / name).read_bytes()

    def is_test(name: str) -> bool:
        return name.startswith(("tests/test_", "tests/mutants.")) or name.endswith(".md")

    others = hashlib.sha256(b"".join(content(name) for name in tracked() if not is_test(name)))
    result = {}
    for fault in chosen:
        digest = others.copy()
        digest.update(repr(fault).encode())
        for name in sorted({test.partition("::")[0] for test in fault.tests}):
            digest.update(content(name) if (ROOT / name).is_file() else b"")
        result[fault.name] = digest.hexdigest()[:16]
    return result


def read(path: Path) -> dict[str, Result]:
    """{name of a fault: its last result} of a file of results."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = [Result(**json.loads(line)) for line in lines]
    return {result.name: result for result in results}


def run(todo: Sequence[Fault], codes: Mapping[str, str], jobs: int, report: Callable[[Result], None]) -> None:
    """Try all of these faults, those whose tests are in the same files one after another in the same copy."""

    def files(fault: Fault) -> tuple[bool, list[str]]:
        return fault.slow, sorted({test.partition("::")[0] for test in fault.tests})

    waiting: queue.SimpleQueue[list[Fault]] = queue.SimpleQueue()
    for _, same in itertools.groupby(sorted(todo, key=files), files):
        waiting.put(list(same))
    lock = threading.Lock()

    def work(copy: Copy) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                group = waiting.get_nowait()
                slow = group[0].slow
                # One process for the tests of all these faults; only where a test fails, it matters whose it is.
                all_pass = copy.passes(sorted({test for fault in group for test in fault.tests}), slow)
                for fault in group:
                    start = time.monotonic()
                    passes = all_pass or copy.passes(fault.tests, slow)
                    outcome = copy.result(fault) if passes else "cannot be tried: its tests fail without it"
                    with lock:
                        report(Result(fault.name, outcome, round(time.monotonic() - start, 1), codes[fault.name]))

    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        copies = [Copy(Path(folder, str(job)), Path(folder, "programs")) for job in range(jobs)]
        threads = [threading.Thread(target=work, args=(copy,), daemon=True) for copy in copies]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for copy in copies:
                copy.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", metavar="WORD", default="", help="only faults with this in their name or file")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth fault of the list")
    parser.add_argument("--jobs", type=int, default=1, help="how many faults to try at the same time")
    parser.add_argument("--since", type=Path, metavar="RESULTS", help="earlier results: what they saw must be seen")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does, it ends the tests and cleans up
    every = faults()[:: arguments.every]
    chosen = [fault for fault in every if arguments.k in fault.name or arguments.k in fault.file]
    codes = hashes(chosen)
    results = {name: r for name, r in read(RESULTS).items() if codes.get(name) == r.code}
    todo = [fault for fault in chosen if fault.name not in results]
    print(f"{len(chosen)} faults, of which {len(results)} have a result already", flush=True)

    def report(result: Result) -> None:
        results[result.name] = result
        with open(RESULTS, "a") as file:
            file.write(json.dumps(dataclasses.asdict(result)) + "\n")
        print(f"{len(results):4} {result.seconds:6.1f} s  {result.result}: {result.name}", flush=True)

    run(todo, codes, arguments.jobs, report)
    missed = [results[fault.name] for fault in chosen if not results[fault.name].seen]
    quick = sum(results[fault.name].seen and not fault.slow for fault in chosen)
    seconds = sum(result.seconds for result in results.values())
    print(
        f"{len(chosen) - len(missed)} of {len(chosen)} faults are seen, {quick} of them by make test; {seconds:.0f} s"
    )
    for result in results.values():
        if result.result == HUNG:
            print(f"{result.result}: {result.name}")
    for result in missed:
        print(f"{result.result}: {result.name}")
    lost: list[str] = []
    if arguments.since:
        before = [
            result.name for result in read(arguments.since).values() if result.seen and arguments.k in result.name
        ]
        lost = [name for name in before if name not in results or not results[name].seen]
        for name in lost:
            print(f"was seen before, and {'is not now' if name in results else 'is not in the list'}: {name}")
    return 1 if missed or lost else 0


if __name__ == "__main__":
    sys.exit(main())

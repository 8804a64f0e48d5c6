"""Are faults seen? Each is planted in a copy of the repository, where its tests are run.

    python -m tests.mutants [-k WORD]                    # make mutants: the faults of mutants.toml
    python -m tests.mutants FILE ... [--tests TEST ...]  # make mutants FILES=...: faults of these files' lines

A fault is seen if one of its tests fails, crashes or hangs. The exit status is 1 if one is not seen. Cosmic Ray makes
the faults of lines; they are tried with the tests that are nearest to the files (`nearest`), or with those named.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.reach import Repository

ROOT = Path(__file__).parents[1]
FAULTS = ROOT / "tests" / "mutants.toml"
TIMEOUT = 3  # times the time of all tests without a fault: a fault may take it, and is seen then
RESULTS = {True: "SURVIVED", False: "seen", None: "seen, by a timeout"}
NEAREST = 3  # files of tests for the faults of a file
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-o", "addopts=", "-p", "no:cacheprovider")
# Cosmic Ray puts every other operator in an operator's place: of these, the likely ones will do. None for `|`, which
# stands in types, and for decorators, most of which only cache.
LIKELY = "Add_Sub Sub_Add Mul_Div Div_Mul Pow_Mul FloorDiv_Div Mod_FloorDiv"
LIKELY += " Eq_NotEq NotEq_Eq Lt_LtE LtE_Lt Gt_GtE GtE_Gt Is_IsNot IsNot_Is"
LEFT_OUT = re.compile(rf"core/(RemoveDecorator|Replace(Binary|Comparison)Operator_(?!({LIKELY.replace(' ', '|')})$))")


@dataclasses.dataclass(frozen=True)
class Fault:
    """`old`, which `file` has once, is replaced by `new`. tests: node ids of pytest."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()


def faults() -> list[Fault]:
    """All faults of the list."""
    rows = tomllib.loads(FAULTS.read_text())["fault"]
    return [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def nearest(files: Sequence[str], repository: Repository) -> list[str]:
    """The tests that reach one of these files: those that import it themselves first, then those that reach least."""
    modules = {file.removesuffix(".py").replace("/", ".") for file in files}
    tests = [file for file in repository.files if file.startswith("tests/test_") and file.endswith(".py")]
    reaching = [test for test in tests if not repository.reached(test).isdisjoint(files)]
    direct = {test for test in reaching if modules & repository.imported(test)}
    return sorted(reaching, key=lambda test: (test not in direct, len(repository.reached(test)), test))


class Copy:
    """A copy of the repository, in which tests run."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        self._folder = folder / "copy"
        for name in files:
            (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self._folder / name)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(self._folder),
            "PYTHONDONTWRITEBYTECODE": "1",  # Python tells the compiled module of a fault by its size and second alone
            "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),  # a fault costs what it changes alone
        }

    def passes(self, tests: Sequence[str], timeout: float | None = None) -> bool | None:
        """Whether these tests pass; None if they take too long. What they have started ends with them."""
        output = None if timeout is None else subprocess.DEVNULL
        process = subprocess.Popen(
            [*PYTEST, *tests],
            cwd=self._folder,
            env=self._environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            return process.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def result(self, fault: Fault, timeout: float) -> str:
        """What the tests of a fault see of it."""
        path = self._folder / fault.file
        content = path.read_text()
        if content.count(fault.old) != 1:
            raise ValueError(f"{fault.name}: {fault.file} has its text {content.count(fault.old)} times, not once")
        path.write_text(content.replace(fault.old, fault.new))
        try:
            return RESULTS[self.passes(fault.tests, timeout)]
        finally:
            path.write_text(content)


def made(file: str) -> Iterator[Fault]:
    """The faults that Cosmic Ray makes of a file, one at a time, named by the line that changes."""
    from cosmic_ray import mutating, plugins

    source = (ROOT / file).read_text()
    operators = [name for name in sorted(plugins.operator_names()) if not LEFT_OUT.match(name)]
    for operator in map(plugins.get_operator, operators):
        if operator.arguments():  # names of variables, which only a person could give
            continue
        for number in itertools.count():
            mutated = mutating.mutate_code(source, operator(), number)
            if mutated is None:
                break
            lines = zip(itertools.count(1), source.splitlines(), mutated.splitlines(), strict=False)
            line, old, new = next((line, old, new) for line, old, new in lines if old != new)
            yield Fault(f"{file}:{line}: {old.strip()}  ->  {new.strip()}", file, source, mutated)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="files whose lines get faults by Cosmic Ray")
    parser.add_argument("--tests", nargs="+", metavar="TEST", help="their tests")
    parser.add_argument("-k", metavar="WORD", default="", help="only faults with this in their name or file")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does, it ends the tests and cleans up
    repository = Repository(ROOT)
    chosen = faults()
    if arguments.files:
        tests = tuple(arguments.tests or nearest(arguments.files, repository)[:NEAREST])
        chosen = [dataclasses.replace(fault, tests=tests) for file in arguments.files for fault in made(file)]
    chosen = [fault for fault in chosen if arguments.k in fault.name or arguments.k in fault.file]
    tests = tuple(sorted({test for fault in chosen for test in fault.tests}))
    print(f"{len(chosen)} faults; tests: {' '.join(tests)}", flush=True)
    results = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        copy, start = Copy(Path(folder), sorted(repository.files)), time.monotonic()
        if not copy.passes(tests):
            sys.exit("these tests must pass without a fault")
        timeout = TIMEOUT * (time.monotonic() - start)
        for number, fault in enumerate(chosen, 1):
            result = copy.result(fault, timeout)
            results[result] += 1
            print(f"{number}/{len(chosen)} {result}: {fault.name}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in results.items()))
    return int(RESULTS[True] in results)


if __name__ == "__main__":
    sys.exit(main())

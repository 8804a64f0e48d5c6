"""Which tests a change can reach, by the texts of the files alone: `make test-changed`.

A function is reached if its name is used, as a name, an attribute or a string, by something that is reached: a file of
tests as a whole, the top level of a module that is reached, a function of it. A module is reached if a name that comes
from it is used there, and then its text counts as a whole. A file that is no module is reached if a string names it.

Two methods of one name are taken for one, so that more is reached than runs. What the text does not show, such as a
name that is put together, would be one dependency too few: tests/test_reach.py holds the result against planted faults.
Nothing is executed, and nothing is kept but which test passed with which texts. So no cache that tests share, no child
process and no order of tests hides a dependency.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import platform
import re
import subprocess
import textwrap
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PASSED = "depthmup/passed"  # entry of pytest's cache: {node id: digest of what the test depended on when it passed}
EVERYWHERE = ("requirements.txt", "pyproject.toml", "tests/__init__.py", "tests/conftest.py")  # of every test
THIS = "tests/reach.py"  # which uses nothing of what its strings name
PACKAGE, PUBLIC = "depthmup", "depthmup.api"  # the names of the package are those of this module
TOP = ("depthmup", "experiments", "benchmarks", "configs", "examples", "tests", "main")
DOTTED = re.compile(rf"({'|'.join(TOP)})(\.\w+)*\.?")
PROGRAM = re.compile(r"^\s*(?:from ([\w.]+) import ([\w, ]+)|import ([\w., ]+))", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Use:
    """The use of `module.name`; of a module itself, any of whose names may be meant, if name is None."""

    module: str
    name: str | None = None


@dataclasses.dataclass
class Scope:
    """The top level of a module, a class or a function: what it uses. required: it runs only if all these are used."""

    required: frozenset[str]
    names: set[str] = dataclasses.field(default_factory=set)
    uses: set[Use] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Module:
    """What the text of a Python file says. strings: all of its strings. imported: {name: what it stands for}.

    reexports: whether it only imports names.
    """

    scopes: tuple[Scope, ...]
    strings: frozenset[str]
    imported: Mapping[str, Use]
    reexports: bool


class _Reader(ast.NodeVisitor):
    """programs: whether strings may be programs and commands, not messages that name some."""

    def __init__(self, programs: bool) -> None:
        self._programs = programs
        self.scopes = [Scope(frozenset())]
        self.strings = set[str]()
        self.imported = dict[str, Use]()
        self._used = set[str]()

    @property
    def _scope(self) -> Scope:
        return self.scopes[self._at]

    _at = 0

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._all(node.decorator_list)
        self._all([*node.args.defaults, *filter(None, node.args.kw_defaults)])  # without annotations
        python_calls_it = node.name.startswith("__") or self._of_foreign_class
        self._inside(set() if python_calls_it else {node.name}, node.body, foreign=False)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all([*node.decorator_list, *node.bases, *node.keywords])
        # Whoever wrote the base class may call methods by names that this repository does not have.
        bases = [_dotted(base).partition(".")[0] for base in node.bases]
        foreign = any(base in self.imported and self.imported[base].module.split(".")[0] not in TOP for base in bases)
        self._inside({node.name}, node.body, foreign=foreign)

    _of_foreign_class = False

    def _inside(self, required: set[str], body: Iterable[ast.AST], foreign: bool) -> None:
        before, self._of_foreign_class = (self._at, self._of_foreign_class), foreign
        self.scopes.append(Scope(self._scope.required | required))
        self._at = len(self.scopes) - 1
        self._all(body)
        self._at, self._of_foreign_class = before

    def _all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if _dotted(node.targets[0]) != "__all__":  # whose names are there for others
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            first = alias.name.partition(".")[0]
            self.imported[alias.asname or first] = Use(alias.name if alias.asname else first)
            if not alias.asname and alias.name != first:
                self._scope.uses.add(Use(alias.name))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.imported[alias.asname or alias.name] = Use(str(node.module), alias.name)

    def visit_Name(self, node: ast.Name) -> None:
        self._use(node.id)
        if node.id in self.imported:
            self._scope.uses.add(self.imported[node.id])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._use(node.attr)
        first, *rest = _dotted(node.value).split(".")
        if first in self.imported:
            use = self.imported[first]
            self._scope.uses.add(Use(".".join((use.module, *([use.name] if use.name else []), *rest)), node.attr))
            for name in (first, *rest):
                self._use(name)
        else:
            self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, str):
            return
        self.strings.add(node.value)
        self._use(node.value)
        word = node.value.rpartition("=")[2]  # of a flag
        if DOTTED.fullmatch(word) and "." in word:
            self._scope.uses.add(Use(word))
        if not self._programs:
            return
        if word.endswith(".py") and DOTTED.fullmatch(word[:-3].replace("/", ".")):  # a program, or a config
            self._scope.uses.add(Use(word[:-3].replace("/", ".")))
        self._scope.uses |= {Use(f"{module}.__main__") for module in re.findall(rf"-m ({PACKAGE})\b", word)}
        if PROGRAM.search(node.value):  # of a child process
            self._program(node.value)

    def _program(self, text: str) -> None:
        try:
            self._all(ast.parse(textwrap.dedent(text)).body)
        except SyntaxError:  # a part of a program, or words that begin as an import does
            for module, names, modules in PROGRAM.findall(text):
                self._scope.uses |= {Use(module, name.strip()) for name in names.split(",") if module}
                self._scope.uses |= {Use(name.strip()) for name in modules.split(",") if name.strip()}
            self._scope.names.update(re.findall(r"\w+", text))

    def _use(self, name: str) -> None:
        self._scope.names.add(name)
        self._used.add(name)

    def module(self, tree: ast.Module) -> Module:
        self._all(tree.body)
        reexports = all(
            isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)
            or (isinstance(node, ast.Assign) and _dotted(node.targets[0]) == "__all__")
            for node in tree.body
        )
        if not reexports:  # what is imported and not used here is there for others, or for what importing it does
            self.scopes[0].uses.update(use for name, use in self.imported.items() if name not in self._used)
        return Module(tuple(self.scopes), frozenset(self.strings), self.imported, reexports)


def _dotted(node: ast.AST) -> str:
    """ "a.b" of the expression a.b; "" of one that is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        front = _dotted(node.value)
        return f"{front}.{node.attr}" if front else ""
    return ""


class Repository:
    """The files of a checkout, and what each file of tests depends on."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self.files = frozenset(_listed(root))
        self._modules, self._texts, self._digests = dict[str, Module](), dict[str, str](), dict[str, str]()
        self._reached = dict[str, frozenset[str]]()
        self._followed, self._found = dict[Use, frozenset[tuple[str, bool, str]]](), dict[str, frozenset[str]]()
        self._calls = defaultdict[str, set[str]](set)  # {what a string may call a file: those files}
        for file in self.files:
            for call in _calls(PurePosixPath(file)):
                self._calls[call].add(file)

    def reached(self, test: str) -> frozenset[str]:
        """All files that a file of tests depends on."""
        if test not in self._reached:
            self._reached[test] = self._closure(test)
        return self._reached[test]

    def imported(self, file: str) -> frozenset[str]:
        """The modules that a file imports, and what it imports from them, by dotted name."""
        uses = self._module(file).imported.values()
        return frozenset(name for use in uses for name in (use.module, f"{use.module}.{use.name}"))

    def _closure(self, test: str) -> frozenset[str]:
        files, names = {test, *EVERYWHERE} & self.files, set[str]()
        pending = [file for file in files if file.endswith(".py")]
        modules, waiting = set(pending), list[Scope]()
        while pending:
            for file in pending:
                files |= self._named(file)
                scopes = self._module(file).scopes
                if file in (test, *EVERYWHERE):  # pytest calls what they have
                    scopes = tuple(dataclasses.replace(scope, required=frozenset()) for scope in scopes)
                waiting += scopes
            pending = []
            while active := [scope for scope in waiting if scope.required <= names]:
                waiting = [scope for scope in waiting if not scope.required <= names]
                for scope in active:
                    names |= scope.names
                    for use in scope.uses:
                        names.add(use.name or "")
                        for file, whole, name in self._targets(use):
                            files.add(file)
                            names.add(name)
                            if whole and file not in modules:
                                modules.add(file)
                                pending.append(file)
        return frozenset(files)

    def digest(self, test: str) -> str:
        """A hash of the texts of all that a file of tests depends on, and of the version of Python."""
        if test not in self._digests:
            total = hashlib.sha256(platform.python_version().encode())
            for file in sorted(self.reached(test)):
                if file not in self._texts:
                    self._texts[file] = hashlib.sha256((self._root / file).read_bytes()).hexdigest()
                total.update(f"{file} {self._texts[file]}\n".encode())
            self._digests[test] = total.hexdigest()[:16]
        return self._digests[test]

    def older(self, test: str, moment: float) -> bool:
        """Whether all that a file of tests depends on has been written before a moment, in seconds since the epoch."""
        return all((self._root / file).stat().st_mtime < moment for file in self.reached(test))

    def _module(self, file: str) -> Module:
        if file not in self._modules:
            self._modules[file] = _Reader(not file.startswith(PACKAGE)).module(
                ast.parse((self._root / file).read_text())
            )
        return self._modules[file]

    def _targets(self, use: Use) -> frozenset[tuple[str, bool, str]]:
        """(file, whether what is in it is reached or only its text, the name there) of a use; none of others."""
        if use not in self._followed:
            self._followed[use] = frozenset(self._of(use))
        return self._followed[use]

    def _of(self, use: Use) -> Iterator[tuple[str, bool, str]]:
        if use.module.endswith("."):  # the beginning of a name that is put together: any module of the package
            folder = use.module.replace(".", "/")
            yield from ((file, True, "") for file in self.files if file.startswith(folder) and file.endswith(".py"))
            return
        inner = self._file(f"{use.module}.{use.name}") if use.name else None
        file = inner or self._file(use.module)
        if file is None:  # a name inside a module, such as "depthmup.trials.group.Runner.train"
            front, _, name = use.module.rpartition(".")
            yield from self._targets(Use(front, name)) if front else ()
            return
        for folder in PurePosixPath(file).parents:
            yield from ((package, False, "") for package in [f"{folder}/__init__.py"] if package in self.files)
        if file == f"{PACKAGE}/__init__.py":
            yield from self._targets(Use(PUBLIC, use.name)) if use.name else ()
            return
        package = self._file(use.module)
        if inner and package and package != f"{PACKAGE}/__init__.py" and not self._module(package).reexports:
            yield package, True, use.name or ""  # which may have a function of the name of its module
        module = self._module(file)
        holder = None if inner or not module.reexports else module.imported.get(use.name or "")
        yield file, not module.reexports and file != THIS, use.name or ""
        if holder:
            yield from self._targets(holder)
        elif module.reexports:
            for other in module.imported.values():
                yield from self._targets(other)

    def _file(self, module: str) -> str | None:
        path = module.replace(".", "/")
        return next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in self.files), None)

    def _named(self, file: str) -> frozenset[str]:
        """The files that the strings of a file name. A module of the package names files of it and configs alone."""
        if file in self._found:
            return self._found[file]
        named = set[str]()
        for string in self._module(file).strings:
            string = string.rpartition("=")[2].strip("/")
            named |= self._calls.get(string, set()) if string else set()
            pattern = string.rpartition("/")[2]
            if "*" in pattern and "." in pattern and " " not in pattern:
                named.update(other for other in self.files if fnmatch(PurePosixPath(other).name, pattern))
        if file.startswith(f"{PACKAGE}/"):
            named = {f for f in named if f.startswith("configs/") or (f.startswith(PACKAGE) and f[-3:] != ".py")}
        self._found[file] = frozenset(named)
        return self._found[file]


class Changed:
    """A plugin of pytest: it remembers which test has passed with which texts, and with --changed leaves those out."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._start, self._good = config, time.time(), dict[str, bool]()
        self._worker = hasattr(config, "workerinput")  # of xdist: the process that started it hears of all tests

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if not self._config.option.changed:
            return
        repository, passed = Repository(self._config.rootpath), self._config.cache.get(PASSED, {})
        same = {item for item in items if repository.digest(_file(item.nodeid)) == passed.get(item.nodeid)}
        self._config.hook.pytest_deselected(items=same)
        items[:] = [item for item in items if item not in same]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._good[report.nodeid] = self._good.get(report.nodeid, True) and not report.failed

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._config.option.changed and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
        if self._worker or not hasattr(self._config, "cache") or not self._good:
            return
        repository, passed = Repository(self._config.rootpath), self._config.cache.get(PASSED, {})
        for test, good in self._good.items():
            # What was written while the tests ran may not be what they saw.
            good = good and repository.older(_file(test), self._start)
            passed[test] = repository.digest(_file(test)) if good else ""
        self._config.cache.set(PASSED, passed)


def part(items: list[Any], text: str) -> tuple[list[Any], list[Any]]:
    """Every Nth item for "I/N", and the others. Parts take about as long as each other, as neighbours do."""
    number, parts = map(int, text.split("/"))
    if not 0 <= number < parts:
        raise pytest.UsageError(f"--part={text} must be I/N, from 0/N to N-1/N")
    return items[number::parts], [item for i, item in enumerate(items) if i % parts != number]


def _file(test: str) -> str:
    """The file of a test's node id."""
    return test.partition("::")[0]


def _calls(path: PurePosixPath) -> Iterator[str]:
    """What a string may call a file: an end of its path, a part of its folders, its ending. Modules are imported."""
    yield from ("/".join(path.parts[start:]) for start in range(len(path.parts)))
    folders = path.parts[:-1]
    if path.suffix != ".py":
        yield path.suffix
    if path.suffix != ".py" or path.parts[0] in ("configs", "examples", "docs"):
        yield from ("/".join(folders[i:j]) for i in range(len(folders)) for j in range(i + 1, len(folders) + 1))


def _listed(root: Path) -> Iterator[str]:
    """The files of a checkout: those that git knows or would add; where there is no git, those that are not hidden."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if listed.returncode == 0:
        yield from (name for name in listed.stdout.split("\0") if name and (root / name).is_file())
        return
    for path in root.rglob("*"):
        relative = path.relative_to(root)
        if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in relative.parts):
            yield relative.as_posix()

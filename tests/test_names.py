"""One name, one thing: a public function or class of a module has a name of its own."""

import ast
import collections
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "depthmup"
# Contracts with users: `keras.setup` beside `setup`, `sweep.load` beside `data.load`, `sweep.path_sum` beside
# `fit.path_sum`; every command has a main.
TWICE = ["load", "main", "path_sum", "setup"]
PREPOSITIONS = ["after", "again", "around", "before", "behind", "between", "beyond", "onto", "under", "within"]


def public_names():
    """{name of a public function or class at the top of a module: the modules}"""
    modules = collections.defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(path.relative_to(PACKAGE)))
    return modules


def test_no_public_name_stands_for_two_things():
    assert sorted(name for name, modules in public_names().items() if len(modules) > 1) == TWICE


def test_no_function_is_a_preposition():
    assert sorted(public_names().keys() & set(PREPOSITIONS)) == []

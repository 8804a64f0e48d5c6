"""One name, one thing: a public function or class of a module has a name of its own."""

import ast
import collections
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "depthmup"
# Names that two modules have. The list may only become shorter. Contracts are setup (Keras'), convert, path_sum, load
# and what depthmup.sweep gives; every command has a main.
TWICE = [
    "Choice",
    "Curve",
    "Estimate",
    "Model",
    "Program",
    "Side",
    "Size",
    "Source",
    "Sources",
    "Stage",
    "Table",
    "Traced",
    "Value",
    "by_path",
    "calibrate",
    "check",
    "check_kernel",
    "check_readout",
    "checked",
    "compare",
    "convert",
    "count",
    "digest_of",
    "ends",
    "folder",
    "from_identity",
    "grow",
    "hyper_of",
    "in_words",
    "key",
    "layers",
    "listed",
    "load",
    "loss_curves",
    "main",
    "measured",
    "moments",
    "multiplier",
    "names",
    "nearest",
    "optima",
    "page",
    "parse",
    "path_sum",
    "prepare",
    "read",
    "readouts",
    "run",
    "run_of",
    "scaled",
    "setup",
    "size",
    "sweep",
    "text",
    "traced",
    "train",
    "trials",
    "tune",
    "write",
]
PREPOSITIONS = ["after", "again", "around", "before", "behind", "between", "beyond", "onto", "under", "within"]
AS_FUNCTIONS = ["around", "behind", "between", "beyond"]  # may only become shorter, too


def public_names():
    """{name of a public function or class at the top of a module: the modules}"""
    modules = collections.defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(path.relative_to(PACKAGE)))
    return modules


def test_no_public_name_stands_for_two_things():
    twice = {name: modules for name, modules in public_names().items() if len(modules) > 1}
    assert {name: modules for name, modules in twice.items() if name not in TWICE} == {}
    assert sorted(set(TWICE) - twice.keys()) == [], "these are unique now: remove them from TWICE"


def test_no_function_is_a_preposition():
    assert sorted(public_names().keys() & set(PREPOSITIONS)) == AS_FUNCTIONS

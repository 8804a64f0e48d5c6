"""What importing depthmup loads, and which room may import which (docs/design.md)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "depthmup"

# Modules of the package that each room imports from, besides itself; a room not named here is one this list forgot.
ALLOWED = {
    "activations": set(),
    "backend": set(),
    "parameterization": set(),
    "specs": {"parameterization"},
    "infer": {"parameterization", "specs"},
    "optim": {"parameterization", "specs"},
    "explain": {"parameterization", "specs", "optim"},
    "models": {"activations", "parameterization", "specs", "infer"},
    "data": set(),
    "fit": set(),
    "theory": {"activations", "parameterization"},
    "measure": {"parameterization", "specs", "optim"},
    "convert": {"parameterization"},
    "settings": {"parameterization", "convert", "optim", "fit", "models", "data"},
    "train": {
        "backend",
        "parameterization",
        "convert",
        "specs",
        "infer",
        "optim",
        "models",
        "data",
        "settings",
        "measure",
    },
    "sweep": {
        "backend",
        "parameterization",
        "convert",
        "optim",
        "models",
        "data",
        "settings",
        "fit",
        "measure",
        "train",
    },
    "verbs": {"fit", "parameterization", "explain", "measure", "models", "optim", "settings", "sweep", "train"},
    "__init__": {"explain", "fit", "infer", "measure", "optim", "parameterization", "specs", "theory"},
}


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Top two parts of every module that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_direction(path):
    for module, name in imports(path):
        parts = module.split(".")
        assert parts[0] not in ("configs", "experiments", "main"), f"{path} imports {module}"
        if parts[0] == "depthmup":
            target = parts[1] if len(parts) > 1 else name
            assert target == room(path) or target in ALLOWED[room(path)], f"{path} imports {target}"


def test_no_circles():
    order = []
    while len(order) < len(ALLOWED):
        free = [r for r, needs in ALLOWED.items() if r not in order and needs <= set(order)]
        assert free, "a circle among " + ", ".join(r for r in ALLOWED if r not in order)
        order += free


def test_configs_import_only_ml_collections():
    for path in (ROOT / "configs").glob("*.py"):
        assert {module.split(".")[0] for module, _ in imports(path)} <= {"ml_collections", "configs"}


def test_import_is_light():
    """Beyond what jax, flax, optax and numpy load by themselves, only depthmup and the standard library."""
    program = (
        "import sys, jax, flax, optax, numpy\n"
        "before = set(sys.modules)\n"
        "import depthmup\n"
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))\n"
        "print('matplotlib' in sys.modules, 'ml_collections' in sys.modules, 'sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    new, heavy = done.stdout.splitlines()
    assert set(new.split()) - set(sys.stdlib_module_names) == {"depthmup"}
    assert heavy == "False False False"


def test_files_are_short():
    for path in sorted(PACKAGE.rglob("*.py")):
        assert len(path.read_text().splitlines()) <= 300, path

"""What importing depthmup loads, and which room may import which (docs/design.md)."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "depthmup"

GROUND = {"names", "files", "bucket", "colors"}  # what any room may import from
# Modules of the package that each room imports from besides; a room not named here is one this list forgot.
ALLOWED = {
    "activations": set(),
    "backend": set(),
    "bucket": set(),
    "colors": set(),
    "declare": set(),
    "files": set(),
    "find_config": set(),
    "fit": set(),
    "interrupt": set(),
    "losses": set(),
    "names": set(),
    "rules": set(),
    "schedules": set(),
    "cli_flags": {"find_config"},
    "data": {"declare"},
    "reading": {"rules"},
    "training_settings": {"declare", "losses", "schedules"},
    "theory": {"activations"},
    "measure": {"backend", "fit", "reading", "rules"},
    "models": {"activations", "declare", "reading", "rules"},
    "settings": {"data", "declare", "fit", "losses", "measure", "models", "training_settings", "rules"},
    "train": {
        "backend",
        "data",
        "interrupt",
        "losses",
        "measure",
        "models",
        "reading",
        "training_settings",
        "rules",
        "schedules",
        "settings",
    },
    "trials": {
        "backend",
        "data",
        "fit",
        "interrupt",
        "losses",
        "measure",
        "reading",
        "training_settings",
        "rules",
        "settings",
        "train",
    },
    "plan": {"backend", "data", "settings", "train", "trials"},
    "report": {"cli_flags", "fit", "measure", "rules", "settings", "train", "trials"},
    "sweep": {"measure", "report", "settings", "trials"},
    "tune": {
        "cli_flags",
        "data",
        "declare",
        "fit",
        "interrupt",
        "training_settings",
        "report",
        "rules",
        "schedules",
        "settings",
        "sweep",
        "train",
        "trials",
    },
    "cli": {
        "backend",
        "cli_flags",
        "declare",
        "find_config",
        "fit",
        "interrupt",
        "measure",
        "models",
        "plan",
        "reading",
        "report",
        "rules",
        "schedules",
        "settings",
        "sweep",
        "train",
        "trials",
        "tune",
    },
    "own_model": {"data", "declare", "measure", "reading", "report", "rules", "trials", "tune"},
    "__main__": {"cli"},
    "keras": {"own_model", "rules"},
    "testing": {"own_model"},
    "api": {"fit", "measure", "own_model", "reading", "rules", "testing", "theory"},
    "__init__": {"api"},
}


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def room_of_import(module, name):
    """The room of `from module import name`; None for what is not ours."""
    parts = [*module.split("."), name]
    return parts[1] if parts[0] == "depthmup" else None


def imports(path):
    """(module, name) of everything that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_direction(path):
    for module, name in imports(path):
        assert module.split(".")[0] not in ("configs", "experiments", "main"), f"{path} imports {module}"
        target = room_of_import(module, name)
        assert target in {None, room(path), *GROUND} or target in ALLOWED[room(path)], f"{path} imports {target}"


def test_no_circles():
    order = []
    while len(order) < len(ALLOWED):
        free = [r for r, needs in ALLOWED.items() if r not in order and needs <= set(order)]
        assert free, "a circle among " + ", ".join(r for r in ALLOWED if r not in order)
        order += free


def files_imported(path):
    """The files of the repository that a file imports from, in functions and for types alone too."""
    for module, name in imports(path):
        for dotted in (f"{module}.{name}", module):
            place = ROOT / dotted.replace(".", "/")
            file = next((f for f in (place.with_suffix(".py"), place / "__init__.py") if f.exists()), None)
            if file:
                yield file
                break


def test_no_circles_of_files():
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]
    needs = {file: set(files_imported(file)) - {file} for file in files}
    while free := [file for file, others in needs.items() if not others & needs.keys()]:
        for file in free:
            del needs[file]
    assert not needs, "among " + ", ".join(str(file.relative_to(ROOT)) for file in needs)


def test_the_map_has_every_module():
    """docs/design.md: a line that starts with a folder, then its modules."""
    (block,) = re.findall(r"^## The house\n\n```\n(.*?)^```", (ROOT / "docs" / "design.md").read_text(), re.M | re.S)
    folder, mapped = "", []
    for line in block.splitlines():
        folder = folder if line.startswith(" ") else line.split(":")[0]
        mapped += [folder + name for name in re.findall(r"\b[a-z]\w*\.py\b", line)]
    modules = (path for room in (PACKAGE, ROOT / "experiments") for path in room.rglob("[a-z]*.py"))
    assert sorted(mapped) == sorted(str(path.relative_to(ROOT)) for path in modules)


def test_configs_import_only_ml_collections():
    for path in (ROOT / "configs").glob("*.py"):
        assert {module.split(".")[0] for module, _ in imports(path)} <= {"ml_collections", "configs"}


def in_a_new_process(program):
    """The lines that it prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.splitlines()


def test_import_is_light():
    """Beyond what jax, flax, optax and numpy load by themselves, only depthmup and the standard library."""
    program = (
        "import sys, jax, flax, optax, numpy\n"
        "before = set(sys.modules)\n"
        "from depthmup import *\n"
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))\n"
        "print('matplotlib' in sys.modules, 'ml_collections' in sys.modules, 'sklearn' in sys.modules)"
    )
    new, heavy = in_a_new_process(program)
    assert set(new.split()) - set(sys.stdlib_module_names) == {"depthmup"}
    assert heavy == "False False False"


def test_a_name_is_imported_when_it_is_used():
    program = (
        "import sys, depthmup\n"
        "from depthmup import find_config, interrupt\n"
        "print('jax' in sys.modules, 'numpy' in sys.modules)\n"
        "print(*(getattr(depthmup, name).__name__ for name in ('convert', 'explain', 'parameterization', 'setup')))\n"
        "print(depthmup.fit.transfer.__module__, depthmup.theory.__name__)\n"
        "print(set(depthmup.__all__) <= set(dir(depthmup)))\n"
        "print(hasattr(depthmup, 'nothing'), hasattr(depthmup, '__wrapped__'))"
    )
    assert in_a_new_process(program) == [
        "False False",
        "convert explain parameterization setup",
        "depthmup.fit.transfer depthmup.theory",
        "True",
        "False False",
    ]


def test_reading_a_finished_sweep_is_light(tmp_path):
    """Loading and judging its rows imports neither Orbax nor clu."""
    program = f"""
import json, math, sys
from pathlib import Path
from depthmup import sweep
from depthmup.report.curves import judge
from depthmup.settings import column
from depthmup.trials.plan import grid_trials
from tests import tiny

study, lines = tiny.study(), []
for trial in grid_trials(study):
    row = {{column(key): value for key, value in trial.leaves.items()}}
    loss = 0.1 + abs(math.log2(row["learning_rate"]) + 2)
    lines.append(json.dumps({{**row, "key": trial.key, "loss": loss, "diverged": False}}))
Path({str(tmp_path)!r}, "results.jsonl").write_text("\\n".join(lines) + "\\n")
print(len(judge(sweep.load({str(tmp_path)!r}), study)))
heavy = ("orbax", "clu")
print(*[name for name in heavy if name in sys.modules])
"""
    assert in_a_new_process(program) == ["12", ""]

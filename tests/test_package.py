"""What can be told of the package without building it; `make dist` builds it and installs it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

import depthmup
from depthmup import find_config
from depthmup.cli_flags import VERBS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONFIGS = {path.stem for path in (ROOT / "configs").glob("*.py")}


def requirements(lines):
    return {re.match(r"[\w-]+(\[.*\])?", line)[0] for line in lines}


def test_the_core_needs_four_packages():
    assert requirements(PROJECT["project"]["dependencies"]) == {"jax", "flax", "optax", "numpy"}


def test_the_library_of_tpus_comes_with_the_extra_tpu_alone():
    extras = PROJECT["project"]["optional-dependencies"]
    assert {name for name, lines in extras.items() if "tpu" in " ".join(lines).split("libtpu")[0]} == {"tpu"}
    assert "jax[tpu]" in requirements(extras["tpu"])
    assert "tpu" not in (ROOT / "requirements.txt").read_text()


def pinned(package, python):
    """The version that requirements.txt has for a Python, "3.13" say."""
    lines = map(Requirement, re.findall(r"^\w.*", (ROOT / "requirements.txt").read_text(), re.M))
    (version,) = (
        next(iter(line.specifier)).version
        for line in lines
        if line.name == package and (not line.marker or line.marker.evaluate({"python_full_version": f"{python}.0"}))
    )
    return version


def test_the_readme_names_the_versions_that_ci_runs():
    """CI runs the tests under the first, a part of all under the second, of which it takes what is installed."""
    script = (ROOT / ".ci" / "run").read_text()
    pythons = {name: versions.split() for name, versions in re.findall(r"^(\w+)=\$\(first_python (.*)\)", script, re.M)}
    runs = {name: goals.split() for goals, name in re.findall(r'^make ([\w -]+) PYTHON="\$\{(\w+)', script, re.M)}
    assert runs == {"older": ["test"], "newer": ["lint", "test-part"]}
    assert "\ntest: lint\n" in (ROOT / "Makefile").read_text()
    tested = []
    for name in runs:
        (jax,) = {re.match(r"\d+\.\d+", pinned("jax", python))[0] for python in pythons[name]}
        tested.append((" or ".join(pythons[name]), jax))
    said = r"Python ([\d. or]+\d)%s JAX (\d+\.\d+)"
    assert re.findall(said % " with", (ROOT / "README.md").read_text()) == tested
    assert re.findall(said % " is not installed, so", script) == tested
    classifiers = {line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if " 3." in line}
    assert {python for versions in pythons.values() for python in versions} == classifiers


def test_the_version_is_in_one_place():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "depthmup.__version__"}
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
    assert newest == depthmup.__version__


def test_infinite_depth_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffrax", None)
    depthmup.theory.lazy_kernels(np.eye(1), depth=2, activation="tanh")
    with pytest.raises(ModuleNotFoundError, match=r"depth needs diffrax: pip install -e '\.\[theory\]' in a clone of"):
        depthmup.theory.lazy_kernels(np.eye(1), activation="tanh")


def test_names_are_those_of_the_shipped_configs():
    assert set(find_config.config_names()) == CONFIGS
    for name in find_config.config_names():
        assert find_config.find(name) == str(ROOT / "configs" / f"{name}.py")
    assert find_config.find("default:vit") == str(ROOT / "configs" / "default.py:vit")


def test_a_path_is_a_path(tmp_path, monkeypatch):
    """Also where a shipped config has the same name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits.py").touch()
    assert find_config.find("digits.py:x") == "digits.py:x"
    assert find_config.find("digits") == str(ROOT / "configs" / "digits.py")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("digit", r"unknown config 'digit'; did you mean 'digits' or 'gpt'\? --help lists all that ship"),
        ("", "unknown config ''"),
        (
            "nowhere/digits.py:x",
            r"no config file nowhere/digits\.py; did you mean 'digits'\? --help lists all",
        ),
        ("nowhere/mine.py", r"no config file nowhere/mine\.py; --help lists all that ship"),
    ],
)
def test_errors_of_find(value, message):
    with pytest.raises(ValueError, match=message):
        find_config.find(value)


def test_paths_changes_the_config_alone():
    digits = find_config.find("digits")
    argv = ["depthmup", "sweep", "--config=digits", "--config.seed=1", "--workdir=digits"]
    assert find_config.paths(argv) == [*argv[:2], f"--config={digits}", *argv[3:]]
    assert find_config.paths(["depthmup", "-config", "digits", "sweep"]) == ["depthmup", "-config", digits, "sweep"]
    assert find_config.paths(["depthmup", "--config"]) == ["depthmup", "--config"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package as the wheel lays it out."""
    folder = tmp_path_factory.mktemp("site")
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "depthmup", folder / "depthmup", ignore=without)
    shutil.copytree(ROOT / "configs", folder / "depthmup" / "configs", ignore=without)
    return folder


def command(site, cwd, *arguments, without):
    """The installed command, in a folder with something of its own that is called configs."""
    (cwd / "configs").mkdir()
    (cwd / "configs" / "papers.py").write_text("raise ValueError('not the shipped one')")
    program = f"import sys; sys.modules[{without!r}] = None; from depthmup.__main__ import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("verb", "depth", "message"),
    [
        ("shrink", 2, f"verb 'shrink': give one of {', '.join(VERBS)}"),
        ("train", 0, "model.depth must be at least 1 and less than 1,048,576, got 0"),
    ],
)
def test_the_command_finds_configs_in_the_wheel(site, tmp_path, verb, depth, message):
    """A config that imports another one, which imports a third; importing the verbs does not need TensorFlow.

    A wrong verb is seen before the verbs are imported, a wrong depth after it.
    """
    words = verb, "--config=patches:vit", f"--config.model.depth={depth}"
    assert command(site, tmp_path, *words, without="tensorflow").stderr == f"error: {message}\n"


def test_without_the_extra_the_command_names_it(site, tmp_path):
    done = command(site, tmp_path, "--help", without="ml_collections")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: depthmup needs ml_collections: pip install -e '.[run]' in a clone of depthmup\n"


def test_a_config_finds_its_neighbours(tmp_path):
    """In a folder called configs of its own; the shipped ones are still there."""
    config = tmp_path / "configs" / "mine.py"
    config.parent.mkdir()
    config.with_name("papers.py").write_text("WIDTH = 48")
    config.write_text("from configs import default, papers")
    program = (
        "import runpy, sys\n"
        "from depthmup import find_config\n"
        "names = runpy.run_path(find_config.paths(['', f'--config={sys.argv[1]}'])[1].partition('=')[2])\n"
        "print(names['papers'].WIDTH, names['default'].get_config().model.width)"
    )
    done = subprocess.run([sys.executable, "-c", program, config], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "48 128\n", done.stderr

"""XLA's flags for a CPU: where they are set, where they are left alone, and that a workdir remembers them."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import jax
import jaxlib
import pytest

from depthmup import backend
from depthmup.train.workdir import Workdir

OURS = backend.OPTION + "-individual_dot,-individual_convolution"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, OURS),
        ({"XLA_FLAGS": "--xla_dump_to=x"}, "--xla_dump_to=x " + OURS),
        ({"XLA_FLAGS": backend.OPTION + "individual_dot"}, backend.OPTION + "individual_dot"),
        ({"DEPTHMUP_XLA_FLAGS": "0"}, None),
        ({"DEPTHMUP_XLA_FLAGS": "1"}, OURS),
    ],
)
def test_flags_of_the_user_come_first(before, after):
    environment = dict(before)
    backend.add_flags(environment, "0.10.2", "GenuineIntel")
    assert environment.get("XLA_FLAGS") == after
    backend.add_flags(environment, "0.10.2", "GenuineIntel")  # again: nothing is added twice
    assert environment.get("XLA_FLAGS") == after


@pytest.mark.parametrize(("version", "maker"), [("0.9.2", "GenuineIntel"), ("0.10.2", "ARM"), ("0.10.2", "")])
def test_what_was_not_measured_gets_no_flag(version, maker):
    environment = {}
    backend.add_flags(environment, version, maker)
    assert environment == {}


@pytest.mark.parametrize("maker", ["GenuineIntel", "AuthenticAMD"])
def test_this_jaxlib_takes_its_flags(maker):
    """A jaxlib that does not know a flag aborts the process. Devices, too."""
    if (jaxlib.__version__, maker) not in backend.FLAGS:
        pytest.skip(f"jaxlib {jaxlib.__version__} gets no flags")
    script = f"""
import os
from depthmup import backend
backend.processor = lambda: {maker!r}
backend.prepare_cpu(3)
import jax
assert len(jax.devices()) == 3
assert float(jax.jit(lambda a: (a @ a).sum())(jax.numpy.ones((4, 4)))) == 64
print(os.environ["XLA_FLAGS"])
"""
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", backend.SWITCH)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[1])
    assert done.stdout.strip() == backend.FLAGS[jaxlib.__version__, maker], done.stderr


def test_a_workdir_says_when_flags_change(tmp_path, monkeypatch):
    """Last digits may then differ: the folder is used all the same, and keeps what it was computed with."""
    assert jax.default_backend() == "cpu"  # started, so that it does not read flags that it does not know
    for flags, reported in (("--one", []), ("--one", []), ("--two", ["--one"]), ("--one", []), ("--two", [])):
        monkeypatch.setenv("XLA_FLAGS", flags)
        workdir = Workdir(tmp_path, {"a": 1}, "rows")
        workdir.close()
        assert [word for message in workdir.messages for word in ("--one",) if word in message] == reported
        assert len(workdir.messages) == len(reported)
    text = (tmp_path / "environment.json").read_text()
    assert text.count("jaxlib") == 2
    assert "--two" in text
    for damaged in ("5", '{"a": 1}', "[3]", "nonsense"):
        (tmp_path / "environment.json").write_text(damaged)
        Workdir(tmp_path, {"a": 1}, "rows").close()
        assert json.loads((tmp_path / "environment.json").read_text()) == [backend.described()]


def test_versions_of_all_packages_are_kept(monkeypatch):
    """Of those whose code computes results, with the device; this package's own among them."""
    environment = backend.environment()
    for name in ("depthmup", "jax", "jaxlib", "flax", "optax", "numpy"):
        assert f"{name} {metadata.version(name)}" in environment
    assert environment.endswith("device cpu")


@pytest.mark.parametrize("tpu", [True, False])
def test_libtpu_is_told_that_no_tpu_is_there(monkeypatch, tpu):
    """Else it asks the network, and prints six lines of its own. What the user says stays."""
    monkeypatch.setattr(os, "environ", {"TPU_WORKER_HOSTNAMES": "mine"})
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(backend.glob, "glob", lambda pattern: [pattern] if tpu and "accel" in pattern else [])
    monkeypatch.setattr(backend, "add_flags", lambda *of: None)
    monkeypatch.setattr(jax.config, "update", lambda *of: None)
    backend.prepare_cpu(1)
    added = {} if tpu else {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4"}
    assert os.environ == added | {"TPU_WORKER_HOSTNAMES": "mine"}

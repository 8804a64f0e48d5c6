"""`python -m benchmarks.accelerator` where only jax, flax, optax and NumPy are installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
REFUSE = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ml_collections", "clu", "grain", "rich", "tensorflow_datasets", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)
sys.argv = ["accelerator", *sys.argv[1:]]
runpy.run_module("benchmarks.accelerator", run_name="__main__")
"""


def run(*arguments):
    return subprocess.run([sys.executable, "-c", REFUSE, *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_every_part_runs(tmp_path):
    out = tmp_path / "found.json"
    done = run("--smoke", f"--out={out}")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    parts = {name: part for name, part in report.items() if isinstance(part, dict)}
    assert {"check vit", "check resume", "check sweep", "check theory", "sweep", "train ViT", "theory"} <= set(parts)
    assert all(part["ok"] is True for name, part in parts.items() if name.startswith("check"))
    assert not [name for name, part in parts.items() if "error" in part or "left out" in part]


def test_a_cpu_is_refused_and_time_is_kept(tmp_path):
    assert "no accelerator: JAX has only a CPU here" in run().stderr
    out = tmp_path / "found.json"
    assert run("--smoke", "--seconds=0", f"--out={out}").returncode == 0
    assert json.loads(out.read_text())["theory"] == {"left out": "0 s were over"}

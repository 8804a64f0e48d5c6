"""The programs of examples/, as users start them, at sizes that take seconds."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture import LIMIT

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {
    "linen_vit.py": ("--width=16", "--depth=2", "--epochs=3"),
    "equinox_mlp.py": ("--width=16", "--depth=2", "--steps=100"),
}
GPT = ("--width=16", "--depth=2", "--batch=8")
pytestmark = pytest.mark.slow


def started(name, *arguments, devices=1, before=""):
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    program = f"{before}import runpy, sys; sys.argv[0] = {name!r}; runpy.run_path({str(EXAMPLES / name)!r})"
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output(process):
    text, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, text
    return text


def test_all_are_here():
    of_codebases = set(re.findall(r"\w+\.py", (EXAMPLES.parent / "tests/foreign/test_codebases.py").read_text()))
    here = {path.name for path in EXAMPLES.glob("*.py")}
    assert here == {*SMALL, *of_codebases, "nnx_gpt.py", "sweep_your_model.py", "train_by_hand.py"}


@pytest.mark.parametrize("name", SMALL)
def test_it_learns(name):
    accuracy = float(re.search(r"validation accuracy ([\d.]+)", output(started(name, *SMALL[name])))[1])
    assert accuracy > 0.5


def test_a_sweep_of_ones_own_model(tmp_path):
    text = output(started("sweep_your_model.py", "--steps=20", f"--workdir={tmp_path}"))
    depth, width = text.index("depth 4 to 16"), text.index("width 64 to 256")
    assert "adamw depth_mup" in text[depth:width]
    assert "adamw sp" in text[depth:width]
    assert {"report.html", "picture.png"} <= {path.name for path in tmp_path.iterdir()}


def losses(text):
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", text)]


def test_a_gpt_on_many_devices(tmp_path):
    """The same losses on one device and on eight, in one go and where 100 of 150 steps were there."""
    alone = losses(output(started("nnx_gpt.py", *GPT, "--steps=150")))
    workdir = f"--workdir={tmp_path}"
    many = losses(output(started("nnx_gpt.py", *GPT, "--steps=150", workdir, devices=8)))
    assert many == pytest.approx(alone, abs=0.03)  # roundings grow over steps; batches differ by .1
    for newest in tmp_path.glob("150*"):
        shutil.rmtree(newest)
    again = output(started("nnx_gpt.py", *GPT, "--steps=150", workdir, devices=2))
    assert "going on from step 100" in again
    assert losses(again) == pytest.approx(alone[1:], abs=0.03)


def test_a_gpt_on_two_hosts():
    alone = losses(output(started("nnx_gpt.py", *GPT, "--steps=20", devices=2)))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    join = "import jax; jax.distributed.initialize({!r}, 2, {}); "
    hosts = [started("nnx_gpt.py", *GPT, "--steps=20", before=join.format(address, i)) for i in range(2)]
    for host in hosts:
        assert losses(output(host)) == pytest.approx(alone, abs=2e-3)

"""Ctrl-C and SIGTERM of the command at any moment: one line, the signal's exit status, no process left."""

import select
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import pytest

from depthmup import interrupt
from tests.torture import ROOT, finish, start

COMPILE = """
import signal, sys
import jax, jax.numpy as jnp
from depthmup import interrupt
from depthmup.train.stop import Stop

interrupt.PATIENCE = 1.0
interrupt.watch()

def deep(x):
    for i in range(3000):
        x = jnp.sin(x @ x) + i
    return x

with Stop():
    traced = jax.jit(deep).lower(jnp.ones((3, 3)))
    print("compiles", flush=True)
    traced.compile()
    print("compiled", flush=True)
"""


IMPORT = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = ["train", "--config=digits"]
from depthmup.__main__ import main
main()
"""


def deep(x):
    for i in range(300):
        x = jnp.sin(x @ x) + i
    return x


def test_a_compilation_is_seen():
    assert not interrupt.compiling()
    lowered = jax.jit(deep).lower(jnp.ones((3, 3)))
    thread = threading.Thread(target=lowered.compile)
    thread.start()
    seen = False
    while thread.is_alive():
        seen |= interrupt.compiling()
        time.sleep(0.002)
    assert seen
    assert not interrupt.compiling()


def test_what_other_libraries_drop(capsys):
    class Dropped:
        exc_type, exc_value, object = RuntimeError, RuntimeError("Event loop is closed"), "a task"

    interrupt._unraisable(Dropped)
    assert capsys.readouterr().err == ""
    Dropped.exc_value = RuntimeError("a callback failed")
    interrupt._unraisable(Dropped)
    assert capsys.readouterr().err == "note: RuntimeError in a task: a callback failed\n"


def test_an_interruption_while_it_imports():
    """Of the installed command, which begins as this program does."""
    done = subprocess.run([sys.executable, "-c", IMPORT], cwd=ROOT, capture_output=True, text=True)
    line = "stopped by SIGINT: what is finished is kept; the same command goes on from there\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", line)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 4.5])
def test_an_interruption_while_it_starts(tmp_path, seconds):
    process = start(tmp_path, "--config.epochs=3000")
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    if seconds < 0.3:  # CPython 3.13 loses one signal of 250 that come while it starts itself
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
    status, output = finish(process)
    assert time.monotonic() - began < 20
    assert (status, "Traceback" in output) == (130, False) or (seconds < 0.3 and status == -signal.SIGINT), output
    if status == 130:
        assert len([line for line in output.splitlines() if line.startswith("stopped by SIGINT")]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_compiles(number):
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILE], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert select.select([process.stdout], [], [], 60)[0]
    assert process.stdout.readline() == b"compiles\n"
    time.sleep(0.5)
    process.send_signal(number)
    status, output = finish(process)
    line = (
        f"stopped by {number.name} while it compiled: what is finished is kept; the same command goes on from there\n"
    )
    assert (status, output) == (128 + number, line)

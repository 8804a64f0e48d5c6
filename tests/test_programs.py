"""A process drops the programs that it has left: each is many memory maps, of which Linux gives a process 65,530."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup import backend
from depthmup.backend import proc_lines
from depthmup.measure import Probe, coordinate_check
from depthmup.trials.group import Runner, hypers_of
from tests import tiny

PROGRAMS = 30
pytestmark = pytest.mark.skipif(
    not proc_lines("self/maps"), reason="this system does not show the memory maps of a process"
)


def maps():
    return len(proc_lines("self/maps"))


@pytest.fixture
def set_limit(monkeypatch):
    """A function that makes a quarter of a process's maps some hundred more than there are, and returns it."""

    def set_limit():
        gc.collect()  # what is garbage already would be freed in the place of what the test is about
        limit = maps() + 300

        def lines(name):
            return [str(4 * limit)] if name == "sys/vm/max_map_count" else proc_lines(name)

        monkeypatch.setattr(backend, "proc_lines", lines)
        return limit

    return set_limit


@pytest.mark.slow
def test_a_sweep_frees_its_programs(set_limit):
    """When groups of other programs take their place; here those that make the initial state, which compile quickly."""
    one = {"sweep__optimizers": ("sgd",), "sweep__parameterizations": ("sp",), "sweep__seeds": 1}
    widths = tuple(range(8, 8 + PROGRAMS))
    groups = tiny.groups(6, **one, sweep__depths=(), sweep__widths=widths)
    assert len({group.program for group in groups}) == PROGRAMS
    runner, counts, limit = Runner(), [], 0
    for group in groups:
        runner.loop(group).start(hypers_of(group))
        counts.append(maps())
        limit = limit or set_limit()
    assert max(counts) < limit + 200, counts


def test_a_loop_frees_its_data():
    """Although JAX keeps the programs of pmap, and with them the loop."""
    one = {"sweep__optimizers": ("sgd",), "sweep__parameterizations": ("sp",), "sweep__seeds": 1}
    first, second = tiny.groups(6, **one, sweep__depths=(), sweep__widths=(8, 16))
    runner = Runner()
    data = [weakref.ref(leaf) for leaf in jax.tree.leaves(runner.loop(first)._resident)]
    assert all(leaf() is not None for leaf in data)
    runner.loop(second)
    assert all(leaf() is None for leaf in data)


def test_a_check_frees_programs(set_limit):
    """But for those of checks, of which at most 64 stay."""

    def probe_at(width, depth):
        return Probe(
            jax.jit(lambda hyper: jnp.arange(width) * hyper),
            lambda state, batch, hyper: (state + hyper, {"hidden": state, "logits": state * width}),
            None,
            lambda group, seed: np.float32(seed + 1),
            ("input",),
            np.zeros(()),
        )

    def compiled():
        def function(x):
            return x + 1

        jax.pmap(function)(np.zeros(1))
        return weakref.ref(function)

    limit, functions = set_limit(), []
    while maps() <= limit + 100:
        functions.append(compiled())
    gc.collect()
    assert all(function() for function in functions)  # JAX keeps the programs of pmap, and with them what they compiled
    coordinate_check(probe_at, widths=(8, 16), width=8, depth=1, steps=(1,), seeds=2, max_seeds=2)
    assert not any(function() for function in functions)


def test_few_programs_stay(monkeypatch):
    """A user's own function is not compiled again because of a sweep or a check."""
    traces = []
    function = jax.jit(lambda x: traces.append(x) or x)
    function(1.0)
    backend.free_programs()
    function(1.0)
    assert len(traces) == 1
    monkeypatch.setattr(backend, "proc_lines", lambda name: ["4"] if name.startswith("sys") else proc_lines(name))
    backend.free_programs()
    function(1.0)
    assert len(traces) == 2

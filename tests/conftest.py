"""Eight fake devices, float64 on demand, and no more compiled programs than a process can hold."""

import gc

import jax
import pytest

from depthmup.backend import prepare_cpu

prepare_cpu(8)


@pytest.fixture
def x64():
    """Float64 for the length of a test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def quickly_compiled():
    """For tests whose time is compilation: programs that compile in half the time and run slower."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """A compiled program is many memory maps, of which Linux gives a process 65,530: beyond, compiling crashes."""
    yield
    jax.clear_caches()
    gc.collect()

"""Four fake devices and float64 on demand."""

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 4)


@pytest.fixture
def x64():
    """Float64 for the length of a test."""
    with jax.enable_x64(True):
        yield

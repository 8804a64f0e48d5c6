"""Programs that compile cheaply, once for all tests; eight fake devices; float64 on demand."""

import gc
import os
from pathlib import Path

import jaxlib.version

from tests import compiled, reach, slow_cases

# For every process of the tests, those that tests start among them; JAX reads it when it is imported.
ENVIRONMENT = {
    # Most of the time of a test is compilation, and most of that is optimization, which its small programs do not need.
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    # What several tests or processes need is compiled by the first of them.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    # As many processes as cores are busy: threads of NumPy's would only wait for each other.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# XLA's older way of writing fused loops compiles gradients in a third of the time, on one thread in less than on many.
# A jaxlib that does not know a flag ends the process, so others than these get none.
XLA_FLAGS = {"0.10.2": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"}
FOLDER = "JAX_COMPILATION_CACHE_DIR"
OPTIMIZED = "DEPTHMUP_TESTS_OPTIMIZED"  # where it is set, programs are compiled as users' are
WORKER = "PYTEST_XDIST_WORKER" in os.environ  # then the process that started this one has set its environment
if not WORKER and OPTIMIZED not in os.environ:
    os.environ |= ENVIRONMENT
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS.get(jaxlib.version.__version__, '')}".strip()
    )
PROGRAMS = None if WORKER or FOLDER in os.environ else compiled.KEPT / compiled.key(os.environ)
if PROGRAMS:
    os.environ[FOLDER] = str(compiled.begin(PROGRAMS))

import jax  # noqa: E402
import pytest  # noqa: E402
from jax.experimental.compilation_cache import compilation_cache  # noqa: E402

from depthmup.backend import free_programs, prepare_cpu  # noqa: E402

prepare_cpu(8)
# JAX makes and drops many containers while it traces, of which the collector finds few to free.
gc.set_threshold(50_000, 20, 50)


def pytest_unconfigure():
    if PROGRAMS:
        compiled.end(Path(os.environ[FOLDER]), PROGRAMS)


def pytest_addoption(parser):
    parser.addoption("--changed", action="store_true", help="only tests that a change since they passed can reach")

    parser.addoption("--part", default="0/1", help="I/N: of N parts of the tests the one of this number, from 0")


def pytest_configure(config):
    config.pluginmanager.register(reach.Changed(config))


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(config, items):
    slow_cases.mark(config, items)
    chosen, others = reach.part(items, config.option.part)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


@pytest.fixture
def x64():
    """Float64 for the length of a test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def optimized():
    """Programs compiled for speed: for tests that run for longer than they compile."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def own_cache():
    """No folder of compiled programs but the one that the test chooses."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Later modules find the small programs of earlier ones, as long as there are few."""
    yield
    free_programs()

"""What would run on a GPU or a TPU, lowered for it on a CPU: every family's programs of a run and of a sweep."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup.models import MODELS
from depthmup.train import BatchOverDevices, TrialLoop, TrialsOverDevices
from depthmup.train.build import batches_of, hyper_of, task_of
from tests.test_model_training import settings
from tests.test_vmapped import SMALL

PLATFORMS = ("cuda", "tpu")


def faults(text):
    """What a program for an accelerator must not have: calls of the host, and float64."""
    return set(re.findall(r"callback|infeed|outfeed|[<x]f64>", text))


def lowered(function, *arguments):
    """{platform: the program's text}"""
    traced = function.trace(*arguments)
    return {name: traced.lower(lowering_platforms=(name,)).as_text() for name in PLATFORMS}


def programs(s):
    """{kind: (compiled function, its arguments)}: a run that shares each batch, three trials on two devices, and on two
    sets of two."""
    devices = jax.devices()
    placements = {
        "run": BatchOverDevices(devices, "jit"),
        "sweep": TrialsOverDevices(3, devices[:2], "jit", layout="vmap"),
        "shared": TrialsOverDevices(3, devices[:4], "jit", layout="vmap", share=2),
    }
    return {
        kind: TrialLoop(task_of(s), batches_of(s), where).program(hyper_of(s)) for kind, where in placements.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_programs_for_accelerators(family):
    """No call of the host, no float64; every array of the state is donated; products and convolutions in bfloat16."""
    s = settings(family, "adam", **SMALL[family], dtype="bfloat16")
    for kind, (function, arguments) in programs(s).items():
        state = len(jax.tree.leaves(arguments[0]))
        for platform, text in lowered(function, *arguments).items():
            assert not faults(text), (kind, platform)
            assert len(re.findall(r"tf.aliasing_output|jax.buffer_donor", text)) == state, (kind, platform)
            operations = re.findall(r"stablehlo\.(?:dot_general|convolution).* : (\(.*)", text)
            assert operations
            assert not [
                types for types in operations if not re.match(r"\(tensor<[\dx]*bf16>, tensor<[\dx]*bf16>", types)
            ]


def test_what_must_not_be_there_is_seen():
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    with pytest.raises(ValueError, match="platform"):  # JAX lowers no call of a host that it has not got
        lowered(jax.jit(lambda x: jax.pure_callback(np.sin, x, x)), shape)
    with jax.enable_x64(True):
        wide = lowered(jax.jit(lambda x: x.astype(jnp.float64).sum()), shape)
    assert all("xf64>" in faults(text) for text in wide.values())
    assert not any(map(faults, lowered(jax.jit(jnp.sin), shape).values()))


@pytest.mark.parametrize("wrapper", ["pmap", "jit"])
def test_a_program_is_the_one_that_trains(wrapper):
    """Its arguments have the shapes and types of those that a run gives it."""
    s = settings("residual_mlp")
    share = 2 if wrapper == "jit" else 1
    for placement in (BatchOverDevices(wrapper=wrapper), TrialsOverDevices(3, jax.devices()[:4], wrapper, share=share)):
        loop, seen = TrialLoop(task_of(s), batches_of(s), placement), []
        function, arguments = loop.program(hyper_of(s))
        loop._chunk = lambda *given, seen=seen, function=function: (seen.append(given), function(*given))[1]
        loop.run([hyper_of(s)] * placement.trials, 2)
        for a, b in zip(jax.tree.leaves(arguments), jax.tree.leaves(seen[0]), strict=True):
            assert (a.shape, a.dtype) == (np.shape(b), b.dtype)

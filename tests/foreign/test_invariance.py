"""What each parameter is does not depend on how a model is written: on names, containers, layouts and calls."""

import hashlib

import jax
import jax.numpy as jnp
import pytest

import depthmup as dm
from depthmup.source import traceable
from depthmup.specs import flatten_shapes, leaves_of
from tests.foreign.models import MODELS

QUICK = ("film", "gpt_scanned")
SLOW = ("post_ln", "post_ln_scanned", "mamba", "mamba2", "encoder_decoder_post_ln")


def specs_of(model, written):
    """{path: all that a spec says but its shape}, of a model written anew: (params, apply) -> (params, apply)."""
    source = model.set_up(width=32, depth=2).source

    def at(width, depth):
        apply, shapes = traceable(source.model(width, depth))
        return written(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), apply)

    specs = dm.infer_specs(
        lambda w, d: at(w, d)[0], lambda w, d, params, *inputs: at(w, d)[1](params, *inputs), *model.inputs,
        width=32, depth=2,
    )  # fmt: skip
    return {spec.path: (spec.placed_role, spec.fan_in, spec.fan_out) for spec in leaves_of(specs)}


def hashed(path):
    return "x" + hashlib.sha256(path.encode()).hexdigest()[:8]


def anew(params, apply):
    """The same network with other names in one flat container, arrays stored with their axes reversed, inside jit and
    checkpoint."""
    paths, structure = flatten_shapes(params)
    leaves = dict(zip(paths, jax.tree.leaves(params), strict=True))

    @jax.jit
    @jax.checkpoint
    def call(stored, *inputs):
        return apply(jax.tree.unflatten(structure, [stored[hashed(path)].T for path in paths]), *inputs)

    return {hashed(path): leaf.T for path, leaf in leaves.items()}, call


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_written_anew(name):
    model = MODELS[name]
    plain = specs_of(model, lambda params, apply: (params, apply))
    assert specs_of(model, anew) == {hashed(path): spec for path, spec in plain.items()}

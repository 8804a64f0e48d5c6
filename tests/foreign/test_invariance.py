"""What each parameter is does not depend on how a model is written: on names, containers, layouts and calls."""

import fnmatch
import hashlib

import jax
import jax.numpy as jnp
import pytest

import depthmup as dm
from depthmup.reading.graph import paths_of
from depthmup.reading.source import traceable
from depthmup.rules.specs import flatten_shapes, leaves_of
from tests.foreign.models import MODELS

QUICK = ("film", "gpt_scanned")
SLOW = [name for name, model in MODELS.items() if model.roles and name not in QUICK]


def facts(specs):
    """{path: all that a spec says but its shape}; of what does not grow fans decide nothing, and do not count."""
    return {
        spec.path: (spec.placed_role, *((spec.fan_in, spec.fan_out) if spec.role != "fixed" else ()))
        for spec in leaves_of(specs)
    }


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
    pasted = {"overrides": model.setup[1]} if model.asks else {}
    source = model.set_up(width=32, depth=2, **pasted).source
    paths = [path for depth in (2, 4) for path in flatten_shapes(source.model(32, depth).shapes[0])[0]]
    overrides = {
        hashed(path): value
        for pattern, value in source.overrides.items()
        for path in fnmatch.filter(paths, pattern)
    }  # fmt: skip

    def at(width, depth):
        apply, shapes = traceable(source.model(width, depth))
        return anew(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), apply)

    residual = source.residual and not source.adds_nothing(32, 2)
    specs = dm.infer_specs(
        lambda width, depth: at(width, depth)[0],
        lambda width, depth, params, *inputs: at(width, depth)[1](params, *inputs),
        *model.inputs, width=32, depth=2, residual=residual, overrides=overrides,
    )  # fmt: skip
    unused = paths_of(source.sites(32, 2), "unused")  # of which the program tells nothing
    expected = {hashed(path): fact for path, fact in facts(source.roles(32, 2)).items() if path not in unused}
    assert {path: fact for path, fact in facts(specs).items() if path in expected} == expected

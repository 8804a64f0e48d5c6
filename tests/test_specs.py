"""Spec trees as JSON, and what a parameterization does to parameters by them."""

import jax
import numpy as np
import pytest

import depthmup as dm


def init(width, depth):
    normal = np.random.default_rng(0).normal
    return {
        "in": normal(size=(5, width)),
        "blocks": normal(size=(depth, width, width)),
        "out": normal(size=(width, 3)),
    }


def test_rescale_and_forward_params(x64):
    """Stored parameters of another form, times their multipliers, are those of the default form."""
    specs, params = dm.infer_specs(init, width=8, depth=4), init(8, 4)
    p = dm.parameterization("depth_mup", base_width=2)
    default = dm.rescale(p, specs, params)
    np.testing.assert_allclose(default["out"], 2 * params["out"])  # sqrt(m)
    np.testing.assert_array_equal(default["blocks"], params["blocks"])
    for form in ("mup", "fan_in", "canonical"):
        stored = dm.rescale(p.in_form(form), specs, params)
        seen = dm.forward_params(p.in_form(form), specs, stored)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), seen, default)


def test_json():
    specs, params = dm.infer_specs(init, width=8, depth=3), init(8, 3)
    is_spec = lambda leaf: isinstance(leaf, dm.ParamSpec)  # noqa: E731
    read = dm.specs_from_json(dm.specs_to_json(specs), params)
    assert jax.tree.leaves(read, is_leaf=is_spec) == jax.tree.leaves(specs, is_leaf=is_spec)
    assert jax.tree.structure(read, is_leaf=is_spec) == jax.tree.structure(params)
    with pytest.raises(dm.SpecError, match="of another model: it has blocks"):
        dm.specs_from_json(dm.specs_to_json(specs), init(8, 4))
    with pytest.raises(dm.SpecError, match="of another model: it has 4 parameters"):
        dm.specs_from_json(dm.specs_to_json(specs), {**params, "z": np.zeros(2)})

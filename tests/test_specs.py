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
    specs, params = dm.infer_specs(init, layout="in_out", width=8, depth=4), init(8, 4)
    p = dm.parameterization("depth_mup", base_width=2)
    default = dm.rescale(p, specs, params)
    np.testing.assert_allclose(default["out"], 2 * params["out"])  # sqrt(m)
    np.testing.assert_array_equal(default["blocks"], params["blocks"])
    for form in ("mup", "fan_in", "canonical"):
        stored = dm.rescale(p.in_form(form), specs, params)
        seen = dm.forward_params(p.in_form(form), specs, stored)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), seen, default)


def test_json():
    specs, params = dm.infer_specs(init, layout="in_out", width=8, depth=3), init(8, 3)
    is_spec = lambda leaf: isinstance(leaf, dm.ParamSpec)  # noqa: E731
    read = dm.specs_from_json(dm.specs_to_json(specs), params)
    assert jax.tree.leaves(read, is_leaf=is_spec) == jax.tree.leaves(specs, is_leaf=is_spec)
    assert jax.tree.structure(read, is_leaf=is_spec) == jax.tree.structure(params)
    with pytest.raises(dm.SpecError, match="of another model: it has blocks"):
        dm.specs_from_json(dm.specs_to_json(specs), init(8, 4))
    with pytest.raises(dm.SpecError, match="of another model: it has 4 parameters"):
        dm.specs_from_json(dm.specs_to_json(specs), {**params, "z": np.zeros(2)})


@pytest.mark.parametrize(
    ("shape", "fans", "stack_axis", "expected"),
    [
        ((4, 8), (4, 8), None, ((0,), (1,))),
        ((8, 4), (4, 8), None, ((1,), (0,))),
        ((6, 4, 8), (4, 8), 0, ((1,), (2,))),
        ((4, 8, 6), (4, 8), 2, ((0,), (1,))),
        ((4, 8, 4), (4, 8), 0, ((2,), (1,))),
        ((3, 3, 4, 8), (36, 8), None, ((0, 1, 2), (3,))),
        ((8, 4, 3, 3), (36, 8), None, ((1, 2, 3), (0,))),
        ((16, 2, 8), (16, 16), None, ((0,), (1, 2))),
        ((5, 4, 8), (4, 8), None, ((1,), (2,))),  # experts
    ],
)
def test_matrix_axes(shape, fans, stack_axis, expected):
    spec = dm.ParamSpec("w", "hidden", True, shape, *fans, width=8, depth=6, stack_axis=stack_axis)
    assert spec.matrix_axes == expected


def test_no_matrix():
    spec = dm.ParamSpec("w", "hidden", True, (3, 5, 7), 14, 8, width=8, depth=6)
    with pytest.raises(dm.SpecError, match="no first axes have its 14 inputs"):
        spec.matrix_axes  # noqa: B018

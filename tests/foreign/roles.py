"""Helpers: roles by path, and what an error tells to paste."""

import ast
import re

import jax
import numpy as np
import pytest

import depthmup as dm

z = np.zeros


def by_path(specs):
    return {s.path: s for s in jax.tree.leaves(specs, is_leaf=lambda s: isinstance(s, dm.ParamSpec))}


def roles(specs):
    """{path: role with its place}"""
    return {path: s.placed_role for path, s in by_path(specs).items()}


def infer(init, width=16, depth=2, **options):
    options = {"layout": "in_out", **options}
    return roles(dm.infer_specs(init, width=width, depth=depth, **options))


def fans(init, width=16, depth=2, **options):
    options = {"layout": "in_out", **options}
    return {
        path: (s.fan_in, s.fan_out)
        for path, s in by_path(dm.infer_specs(init, width=width, depth=depth, **options)).items()
    }


def refused(init, message, width=16, depth=2, **options):
    """The overrides that the error prints; they are enough, as they stand."""
    options = {"layout": "in_out", **options}
    with pytest.raises(dm.SpecError, match=message) as caught:
        dm.infer_specs(init, width=width, depth=depth, **options)
    (printed,) = re.findall(r"(?s)overrides=(\{\n.*?\n  \})", str(caught.value))
    pasted = ast.literal_eval(printed)
    dm.infer_specs(
        init, width=width, depth=depth, **{**options, "overrides": {**options.get("overrides", {}), **pasted}}
    )
    return pasted


def blocks(one, depth):
    """A list of equal blocks."""
    return [one for _ in range(depth)]

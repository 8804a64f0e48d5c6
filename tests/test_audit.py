"""The audit of a model's own initializers."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup as dm

BASE = dict(base_width=64, base_depth=2)


def init(width, depth, std=None, branch=1.0):
    """Fan-in init, or `std` for all weights; weights of branches times `branch`."""
    rng = np.random.default_rng(0)
    normal = lambda s, *shape: rng.normal(scale=s, size=shape)  # noqa: E731
    fan = lambda n: std or n**-0.5  # noqa: E731
    return {
        "embedding": normal(1.0 if std is None else std, 50, width),
        "blocks": [
            {"w": normal(branch * fan(width), width, 4 * width), "b": np.zeros(width), "scale": np.ones(width)}
            for _ in range(depth)
        ],
        "out": normal(fan(width), width, 10),
    }


def audit(init_fn, width=256, depth=2, **options):
    p = dm.parameterization("depth_mup", **{**BASE, **options})
    return dm.audit_init(p, dm.infer_specs(init_fn, layout="in_out", width=width, depth=depth), init_fn)


def test_fan_in_init_passes():
    report = audit(init)
    assert report.ok
    assert report.factors == {}
    assert "as it should" in str(report)


def test_constant_std_is_found_and_corrected():
    """normal(.02) at every width, as most language models: from base 64 to 256 the weights must halve."""
    gpt = lambda w, d: init(w, d, std=0.02)  # noqa: E731
    report = audit(gpt)
    assert set(report.factors) == {"blocks/0/w", "blocks/1/w", "out"}
    assert all(factor == pytest.approx(0.5, rel=0.05) for factor in report.factors.values())
    rows = {row.path: row for row in report.rows}
    assert rows["out"].width == pytest.approx(0, abs=0.1)
    assert rows["out"].needed == -0.5
    assert "out" in str(report)
    params = report.correct(gpt(256, 2))
    assert params["out"].std() == pytest.approx(0.01, rel=0.05)
    assert params["embedding"].std() == pytest.approx(0.02, rel=0.05)
    fixed = dm.audit_init(
        dm.parameterization("mup", **BASE), dm.infer_specs(gpt, layout="in_out", width=64, depth=2), gpt
    )
    assert not fixed.ok  # it is the scaling that is wrong, also at the base, where nothing needs to be changed
    assert set(fixed.factors.values()) == {1.0}


def test_embedding_that_shrinks():
    module = lambda w: nn.Sequential([nn.Embed(50, w), nn.Dense(10)])  # noqa: E731
    of = lambda w, d: module(w).init(jax.random.key(0), jnp.zeros(1, int))["params"]  # noqa: E731
    specs = dm.infer_specs(of, layout="in_out", width=256, depth=1, residual=False)
    report = dm.audit_init(dm.parameterization("mup", base_width=64), specs, of)
    assert list(report.factors) == ["layers_0/embedding"]
    assert report.factors["layers_0/embedding"] == pytest.approx(2, rel=0.05)


def test_depth_in_the_init_is_found():
    """GPT-2 divides the init of branches by sqrt(depth); under depth_mup the branch factor does so already."""
    report = audit(lambda w, d: init(w, d, branch=d**-0.5), depth=8)
    assert set(report.factors) == {f"blocks/{i}/w" for i in range(8)}
    assert report.factors["blocks/7/w"] == pytest.approx(2, rel=0.05)


def test_nothing_of_the_target_is_made():
    """The init of a model of a trillion parameters is measured by its program."""

    def blocks(width, depth):
        keys = jax.random.split(jax.random.key(0), depth + 1)
        blocks = [0.02 * jax.random.normal(key, (width, width)) for key in keys[1:]]
        return {"in": jax.random.normal(keys[0], (8, width)), "blocks": blocks, "out": jnp.zeros((width, 5))}

    p = dm.parameterization("depth_mup", **BASE)
    report = dm.audit_init(p, dm.infer_specs(blocks, layout="in_out", width=2**18, depth=16), blocks)
    assert set(report.factors) == {f"blocks/{i}" for i in range(16)}
    assert all(factor == pytest.approx(2**-6, rel=1e-12) for factor in report.factors.values())


def test_an_initializer_that_is_no_elementwise_function_is_run():
    """Of such an init only that of the anchor is made; what it needs at the target follows from its slopes."""
    orthogonal = jax.nn.initializers.delta_orthogonal()

    def net(width, depth):
        keys = jax.random.split(jax.random.key(0), depth + 1)
        blocks = [width**0.5 * orthogonal(key, (3, 3, width, width)) for key in keys[1:]]
        return {"in": jax.random.normal(keys[0], (8, width)), "blocks": blocks, "out": jnp.zeros((width, 5))}

    report = dm.audit_init(
        dm.parameterization("depth_mup", **BASE), dm.infer_specs(net, layout="in_out", width=2**16, depth=4), net
    )
    assert set(report.factors) == {f"blocks/{i}" for i in range(4)}
    assert all(factor == pytest.approx(2**-5, rel=1e-3) for factor in report.factors.values())


def test_rescaling_twice_is_found():
    p = dm.parameterization("mup", **BASE)

    def once(w, d):
        specs = dm.infer_specs(init, layout="in_out", width=w, depth=d)
        return dm.rescale(p, specs, jax.tree.map(jnp.float32, init(w, d)))

    report = dm.audit_init(p, dm.infer_specs(init, layout="in_out", width=256, depth=2), once)
    assert list(report.factors) == ["out"]
    assert report.factors["out"] == pytest.approx(math.sqrt(64 / 256), rel=0.05)


def test_another_model():
    specs = dm.infer_specs(init, layout="in_out", width=64, depth=2)
    with pytest.raises(dm.SpecError, match="the specs have no blocks/2/b"):
        dm.audit_init(dm.parameterization("mup"), specs, lambda w, d: init(w, d + 1))

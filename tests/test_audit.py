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


class Mixed(nn.Module):
    """A small matrix whose init is a fixed matrix times random numbers, as large at any width (S5's B)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        mix = np.fft.fft(np.eye(8)) / 8**0.5
        for i in range(self.depth):

            def init(key):
                return (mix @ (0.3 * jax.random.normal(key, (8, self.width)))).real

            h = h + nn.Dense(self.width, name=f"out_{i}")(nn.gelu(h @ self.param(f"B_{i}", init).T))
        return nn.Dense(3, name="head")(h)


def test_a_small_initializer_is_run_often():
    """One draw of 256 numbers told nothing, and the init was said to be right."""
    with pytest.warns(dm.SetupWarning, match=r"B_\* \(output\): std ~ width\^-?0\.0\d .*, needed width\^-0\.5"):
        dm.setup("depth_mup", Mixed, jnp.ones((2, 5)), width=64, depth=4, base=(32, 2))


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


def starting_at(value):
    """The init with a parameter more, which starts at value(width, depth)."""
    return lambda w, d: {**init(w, d), "gain": jnp.full((3,), value(w, d), jnp.float32)}


@pytest.mark.parametrize(
    ("value", "factor"),
    [
        (lambda w, d: math.log(w**-0.5), math.log(64) / math.log(256)),  # a temperature, whose exponential counts
        (lambda w, d: w**-0.5, 2.0),
        (lambda w, d: d**-0.5, 2**0.5),
        (lambda w, d: (w * d) ** 0.25, 8**-0.25),
    ],
)
def test_a_number_that_changes_with_size(value, factor):
    """From base (64, 2) to (256, 4) it starts at what it is at the base."""
    report = audit(starting_at(value), depth=4)
    assert report.factors == {"gain": pytest.approx(factor)}
    assert f"starts at {value(64, 2):.4g}, at twice the width at {value(128, 2):.4g}, at twice the depth" in str(report)
    corrected = report.correct(starting_at(value)(256, 4))
    np.testing.assert_allclose(corrected["gain"], value(64, 2), rtol=1e-5)
    assert audit(starting_at(lambda w, d: -0.5), depth=4).ok


class Cooled(nn.Module):
    """Attention with a learned temperature that starts at 1/sqrt(head_dim), and a gain of depth^-1/2."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            q, k, v = (nn.DenseGeneral((2, self.width // 2), name=f"{name}_{i}")(h) for name in "qkv")
            t = self.param(f"temperature_{i}", nn.initializers.constant(math.log((self.width // 2) ** -0.5)), ())
            weights = nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * jnp.exp(t))
            gain = self.param(f"gain_{i}", nn.initializers.constant(self.depth**-0.5), (self.width,))
            out = nn.DenseGeneral(self.width, axis=(-2, -1), name=f"out_{i}")(jnp.einsum("bhqk,bkhd->bqhd", weights, v))
            h = h + gain * out
        return nn.Dense(3, name="head")(h)


def test_setup_names_and_corrects_numbers_that_change():
    x = jnp.ones((2, 4, 5))
    options = {"width": 32, "depth": 4, "base": (8, 2)}
    with pytest.warns(dm.SetupWarning) as caught:
        dm.setup("depth_mup", Cooled, x, **options)
    (text,) = [str(one.message) for one in caught if "initializers" in str(one.message)]
    assert "gain_* (vector): starts at 0.7071 at width 8 and depth 2, at 0.7071 at width 16, at 0.5 at depth 4" in text
    assert "temperature_* (scalar): starts at -0.6931 at width 8 and depth 2, at -1.04 at width 16" in text
    params = dm.setup("depth_mup", Cooled, x, fan_in_init=True, **options).init(jax.random.key(0))["params"]
    for i in range(4):
        np.testing.assert_allclose(np.exp(params[f"temperature_{i}"]), 4**-0.5, rtol=1e-5)
    plain = dm.setup("depth_mup", Cooled, x, fan_in_init=False, **options).init(jax.random.key(0))["params"]
    np.testing.assert_allclose(params["gain_3"], np.asarray(plain["gain_3"]) * 2**0.5, rtol=1e-5)

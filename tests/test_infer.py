"""Roles from shapes: scanned and listed blocks of several libraries, overrides, errors."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import depthmup as dm
from depthmup.models import ResidualMLP
from depthmup.reading.overrides import placed_by

UNIT = dm.ForwardFactors(1.0, 1.0, 1.0)


def roles(specs):
    """{path: role with its place}"""
    leaves = jax.tree.leaves(specs, is_leaf=lambda s: isinstance(s, dm.ParamSpec))
    return {s.path: ("branch/" if s.in_branch else "") + s.role for s in leaves}


def by_path(specs):
    return {s.path: s for s in jax.tree.leaves(specs, is_leaf=lambda s: isinstance(s, dm.ParamSpec))}


def linen(make, shape):
    return lambda width, depth: make(width, depth).init(jax.random.key(0), jnp.ones(shape))["params"]


def read(make, shape, **options):
    """The specs of a Linen module by its forward pass."""
    return dm.infer_specs(
        linen(make, shape), lambda w, d, params, x: make(w, d).apply({"params": params}, x), jnp.ones(shape), **options
    )


def residual_mlp(**options):
    def init(width, depth):
        return ResidualMLP(width, depth, **options).init(jax.random.key(0), jnp.ones((1, 5)), UNIT)["params"]

    return init


@pytest.mark.parametrize("scan", [True, False])
def test_residual_mlp(scan):
    specs = dm.infer_specs(residual_mlp(scan=scan, use_bias=True, norm="layer"), layout="in_out", width=8, depth=3)
    prefixes = ["blocks"] if scan else [f"block_{i}" for i in range(3)]
    expected = {
        "read_in/kernel": "input",
        "read_in/bias": "vector",
        "readout/kernel": "readout",
        "readout/bias": "scalar",
    }
    for prefix in prefixes:
        expected |= {f"{prefix}/dense/kernel": "branch/hidden", f"{prefix}/dense/bias": "branch/vector"}
        expected |= {f"{prefix}/norm/{leaf}": "branch/vector" for leaf in ("scale", "bias")}
    assert roles(specs) == expected
    hidden = by_path(specs)[f"{prefixes[0]}/dense/kernel"]
    assert (hidden.fan_in, hidden.fan_out, hidden.stack_axis) == (8, 8, 0 if scan else None)
    read_in = by_path(specs)["read_in/kernel"]
    assert (read_in.fan_in, read_in.fan_out, read_in.width, read_in.depth) == (5, 8, 8, 3)


class ConvBlock(nn.Module):
    """Two convolutions with norm, and a projection on the shortcut."""

    width: int
    project: bool

    @nn.compact
    def __call__(self, x):
        y = nn.Conv(self.width, (3, 3), use_bias=False, name="conv1")(nn.relu(nn.GroupNorm(1, name="norm1")(x)))
        y = nn.Conv(self.width, (3, 3), use_bias=False, name="conv2")(nn.relu(nn.GroupNorm(1, name="norm2")(y)))
        return y + (nn.Conv(self.width, (1, 1), name="shortcut")(x) if self.project else x)


class ConvNet(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(self.width, (3, 3), name="stem")(x)
        for stage in (1, 2):
            for i in range(self.depth):
                x = ConvBlock(self.width * stage, i == 0, name=f"stage{stage}_block_{i}")(x)
        return nn.Dense(10, name="head")(nn.GroupNorm(1, name="norm")(x).mean((1, 2)))


def test_convnet_with_projections():
    specs = read(ConvNet, (1, 8, 8, 3), width=4, depth=2)
    leaf_specs = by_path(specs)
    assert (leaf_specs["stem/kernel"].role, leaf_specs["stem/kernel"].fan_in) == ("input", 27)
    conv = leaf_specs["stage2_block_1/conv2/kernel"]
    assert (conv.role, conv.in_branch, conv.fan_in, conv.fan_out) == ("hidden", True, 72, 8)
    assert (leaf_specs["stage1_block_0/norm1/scale"].role, leaf_specs["stage1_block_0/norm1/scale"].in_branch) == (
        "vector",
        True,
    )
    assert (leaf_specs["norm/scale"].role, leaf_specs["norm/scale"].in_branch) == ("vector", False)
    assert (leaf_specs["head/kernel"].role, leaf_specs["head/bias"].role) == ("readout", "scalar")
    shortcut = leaf_specs["stage2_block_0/shortcut/kernel"], leaf_specs["stage2_block_0/shortcut/bias"]
    assert [(s.role, s.in_branch) for s in shortcut] == [("hidden", False), ("vector", False)]


def test_stages_are_asked_for_without_a_forward_pass():
    """Shapes alone do not tell a projected skip from a layer of a branch."""
    with pytest.raises(
        dm.SpecError, match=r"stage2_block_0/conv1/kernel .*: cannot tell whether it is one of the blocks"
    ):
        dm.infer_specs(linen(ConvNet, (1, 8, 8, 3)), layout="in_out", width=4, depth=2)


class Attention(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.width, name="embed")(x) + self.param(
            "positions", nn.initializers.normal(), (1, 7, self.width)
        )
        x = x + self.param("token", nn.initializers.zeros, (1, 1, self.width))
        for i in range(self.depth):
            x = x + nn.MultiHeadDotProductAttention(num_heads=2, name=f"block_{i}")(x, x)
        return nn.Dense(10, name="head")(x)


def test_attention_projections_are_hidden():
    specs = by_path(read(Attention, (1, 7, 3), width=8, depth=2))
    query, out = specs["block_1/query/kernel"], specs["block_1/out/kernel"]
    assert (query.role, query.fan_in, query.fan_out) == ("hidden", 8, 8)  # (width, heads, head_dim)
    assert (out.role, out.fan_in, out.fan_out) == ("hidden", 8, 8)  # (heads, head_dim, width)
    assert (specs["positions"].role, specs["token"].role) == ("input", "vector")


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.linear = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x):
        return x + self.linear(x)


class Net(nnx.Module):
    def __init__(self, width, depth, scanned):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Linear(5, width, rngs=rngs)
        if scanned:
            self.blocks = nnx.vmap(lambda r: Block(width, r), in_axes=0)(rngs.split(depth))
        else:
            self.blocks = nnx.List([Block(width, rngs) for _ in range(depth)])
        self.head = nnx.Linear(width, 1, rngs=rngs)


@pytest.mark.parametrize("scanned", [True, False])
def test_nnx(scanned):
    def init(width, depth):
        return nnx.state(Net(width, depth, scanned), nnx.Param)

    specs = dm.infer_specs(init, layout="in_out", width=8, depth=3)
    inferred = roles(specs)
    block = "blocks/linear" if scanned else "blocks/2/linear"
    assert inferred[f"{block}/kernel"] == "branch/hidden"
    assert inferred[f"{block}/bias"] == "branch/vector"
    assert (inferred["embed/kernel"], inferred["head/kernel"], inferred["head/bias"]) == ("input", "readout", "scalar")
    params = init(8, 3)
    rescaled = dm.rescale(dm.parameterization("depth_mup", base_width=2), specs, params)
    assert jax.tree.structure(rescaled) == jax.tree.structure(params)
    ratio = rescaled["head"]["kernel"][...] / params["head"]["kernel"][...]
    np.testing.assert_allclose(ratio, 2.0, rtol=1e-6)  # sqrt(m)


def plain(width, depth):
    return {
        "in": np.zeros((5, width)),
        "layers": [{"w": np.zeros((width, width)), "b": np.zeros(width)} for _ in range(depth)],
        "out": np.zeros((width, 1)),
    }


def test_plain_dict_and_layout():
    assert roles(dm.infer_specs(plain, layout="in_out", width=8, depth=3)) == {
        "in": "input",
        "layers/0/b": "branch/vector",
        "layers/0/w": "branch/hidden",
        "layers/1/b": "branch/vector",
        "layers/1/w": "branch/hidden",
        "layers/2/b": "branch/vector",
        "layers/2/w": "branch/hidden",
        "out": "readout",
    }
    transposed = dm.infer_specs(
        lambda w, d: jax.tree.map(lambda a: a.T if a.ndim == 2 else a, plain(w, d)), width=8, depth=3, layout="out_in"
    )
    assert roles(transposed) == roles(dm.infer_specs(plain, layout="in_out", width=8, depth=3))
    assert by_path(transposed)["in"].fan_in == 5
    kernel = dm.infer_specs(lambda w, d: {"conv": np.zeros((w, 3, 5, 5))}, width=8, depth=1, layout="out_in")
    assert (by_path(kernel)["conv"].role, by_path(kernel)["conv"].fan_in) == ("input", 75)


@pytest.mark.parametrize(
    "names",
    [
        lambda i: f"block{i}",
        lambda i: f"h/{i}",
        lambda i: f"layers.{i}.linear",
    ],
)
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_blocks_by_any_number(names, depth):
    def init(width, depth):
        blocks = {names(i): {"w": np.zeros((width, width)), "b": np.zeros(width)} for i in range(depth)}
        return {"in": np.zeros((5, width)), "norm": np.zeros(width), **blocks, "out": np.zeros((width, 3))}

    inferred = roles(dm.infer_specs(init, layout="in_out", width=8, depth=depth))
    assert (inferred["in"], inferred["norm"], inferred["out"]) == ("input", "vector", "readout")
    for i in range(depth):
        assert (inferred[f"{names(i)}/w"], inferred[f"{names(i)}/b"]) == ("branch/hidden", "branch/vector")


@pytest.mark.parametrize("layout", ["in_out", "out_in"])
def test_channel_vectors(layout):
    """(N, 1, 1), as an Equinox convolution's bias, and (1, 1, N)."""

    def init(width, depth):
        return {
            "v": np.zeros((width, 1, 1)),
            "u": np.zeros((1, 1, width))[:, 0] if layout == "in_out" else np.zeros(width),
        }

    specs = dm.infer_specs(init, width=8, depth=1, layout=layout)
    assert roles(specs) == {"u": "vector", "v": "vector"}


def test_not_residual_and_no_stack():
    assert roles(dm.infer_specs(plain, layout="in_out", width=8, depth=3, residual=False))["layers/1/w"] == "hidden"
    shallow = dm.infer_specs(
        lambda w, d: plain(w, 2), layout="in_out", width=8, depth=4, residual=False
    )  # depth changes nothing
    assert roles(shallow)["layers/1/w"] == "hidden"


class Flat(nn.Module):
    """Stem, stack and head share automatic names, and one of the layers looks like the stack's."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.width)(x)
        for _ in range(self.depth):
            x = x + nn.Dense(self.width)(x)
        x = nn.Dense(self.width)(x)
        return nn.Dense(10)(x)


def test_automatic_names_are_asked_for_and_overrides_settle_them():
    init = linen(Flat, (1, 5))
    with pytest.raises(dm.SpecError, match=r"Dense_0/bias \(8,\): cannot tell .* Dense_\*/bias matches 6 .* and 9"):
        dm.infer_specs(init, layout="in_out", width=8, depth=3)
    overrides = {"Dense_*/kernel": "branch/hidden", "Dense_*/bias": "branch/vector"}
    overrides |= {"Dense_0/kernel": "trunk/input", "Dense_0/bias": "trunk/vector", "Dense_4/kernel": "trunk/hidden"}
    overrides |= {"Dense_4/bias": "trunk/vector", "Dense_5/kernel": "trunk/readout", "Dense_5/bias": "trunk/scalar"}
    inferred = roles(dm.infer_specs(init, layout="in_out", width=8, depth=3, overrides=overrides))
    assert (inferred["Dense_2/kernel"], inferred["Dense_4/kernel"], inferred["Dense_5/kernel"]) == (
        "branch/hidden",
        "hidden",
        "readout",
    )
    assert inferred == roles(read(Flat, (1, 5), width=8, depth=3))  # the forward pass needs none


class FlatNoBias(nn.Module):
    """Automatic names again, but only the blocks are (width, width)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.width, use_bias=False)(x)
        for _ in range(self.depth):
            x = x + nn.Dense(self.width, use_bias=False)(x)
        return nn.Dense(10, use_bias=False)(x)


def test_equal_names_are_told_apart_by_the_forward_pass():
    inferred = roles(read(FlatNoBias, (1, 5), width=8, depth=2))
    assert list(inferred.values()) == ["input", "branch/hidden", "branch/hidden", "readout"]


@pytest.mark.parametrize(
    ("init", "options", "message"),
    [
        (lambda w, d: {"cube": np.zeros((w, w, w))}, {}, r"cube \(8, 8, 8\): three axes grow"),
        (lambda w, d: {"odd": np.zeros((int(w**0.5), 3))}, {}, r"odd: axis 0 grows from 2 to 4 to 5"),
        (
            lambda w, d: {"u": np.zeros(w)} | ({"v": np.zeros(w)} if w < 16 else {}),
            {},
            "v is there at only one of 8 and 16",
        ),
        (lambda w, d: {}, {}, "the model has no parameters"),
        (
            lambda w, d: {"s": np.zeros((d + 1, w))},
            {},
            r"s: its shape goes from \(4, 8\) to \(7, 8\) at twice the depth",
        ),
        (lambda w, d: {f"x{'y' * i}": np.zeros(w) for i in range(d)}, {}, "appears at twice the depth, but none"),
        (lambda w, d: {"p": np.zeros((w, 2)), "q": np.zeros((w, 3))}, {}, "p and q all look like readouts"),
        (plain, {"overrides": {"*/b": "hidden"}}, r"layers/0/b \(8,\) has 1 axes that grow with width, 'hidden' has 2"),
        (plain, {"overrides": {"layer/*": "hidden"}}, "'layer/.' matches no parameter; the nearest is 'layers"),
        (plain, {"overrides": {"in": "imput"}}, "did you mean 'input'"),
        (plain, {"overrides": {"in": "stem/input"}}, "unknown place"),
        (plain, {"layout": "inout"}, "did you mean 'in_out'"),
        (plain, {"layout": None}, "infer_specs needs the forward pass, apply="),
        (plain, {"width": 0}, "width must be at least 1, got 0"),
    ],
)
def test_errors(init, options, message):
    with pytest.raises(ValueError, match=message):
        dm.infer_specs(init, **{"layout": "in_out", "width": 8, "depth": 3, **options})


def test_an_override_of_a_parameter_without_axes():
    def init(width, depth):
        return {"up": jnp.zeros((4, width)), "down": jnp.zeros((width, 3)), "scale": jnp.zeros(())}

    def apply(width, depth, params, x):
        return params["scale"] * jnp.tanh(x @ params["up"]) @ params["down"]

    options = dict(width=8, depth=2, residual=False, overrides={"scale": "fixed"})
    spec = dm.infer_specs(init, apply, jnp.ones((2, 4)), **options)["scale"]
    assert (spec.role, spec.fan_in, spec.fan_out) == ("fixed", 1, 1)


def test_the_last_pattern_that_matches_says_the_place():
    assert placed_by({"*": "trunk", "b": "vector"}, ["a", "b"]) == {"a"}

"""Models that strangers found read wrongly, without a word: names, equal numbers, kernels, layouts."""

import ast
import functools
import re
import warnings
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.experimental import pallas as pl

import depthmup as dm
from depthmup.rules.specs import SpecError, leaves_of

X = jax.random.normal(jax.random.key(0), (4, 7))


def setup(factory, base=(16, 2), **options):
    """(the specs at twice the base, by path; what setup warned of)"""
    width, depth = base
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        m = dm.setup("depth_mup", factory, X, width=2 * width, depth=2 * depth, base=base, **options)
    texts = [str(one.message) for one in caught if one.category is dm.SetupWarning]
    return {spec.path: spec for spec in leaves_of(m.specs)}, texts


class Named(nn.Module):
    """An MLP whose layers have any names."""

    width: int
    depth: int
    names: tuple[str, ...]

    @nn.compact
    def __call__(self, x):
        embed, norm, up, down, head = self.names
        h = nn.Dense(self.width, name=embed)(x)
        for i in range(self.depth):
            y = nn.relu(nn.Dense(2 * self.width, name=f"{up}_{i}")(nn.LayerNorm(name=f"{norm}_{i}")(h)))
            h = h + nn.Dense(self.width, name=f"{down}_{i}")(y)
        return nn.Dense(5, name=head)(h)


PLAIN = ("a", "b", "c", "d", "e")


def named(names):
    """{path under the plain names: its rule} of the MLP with these names."""
    specs, _ = setup(lambda width, depth: Named(width, depth, names))
    plain = dict(zip(names, PLAIN, strict=True))

    def path(of):
        layer, _, leaf = of.rpartition("/")
        name, _, number = layer.rpartition("_")
        known = name in plain and number.isdigit()
        return f"{plain[name]}_{number}/{leaf}" if known else f"{plain[layer]}/{leaf}"

    return {path(of): (s.role, s.in_branch, s.fan_in, s.fan_out) for of, s in specs.items()}


@pytest.mark.parametrize(
    "names",
    [
        ("token_embed", "ln", "downsample", "upsample", "lm_head"),
        ("downsample", "scale", "shortcut", "skip_proj", "logits"),
        ("head", "bias", "embed", "readout", "shortcut"),
        ("router", "gate", "experts", "conv", "input"),
    ],
    ids="-".join,
)
def test_names_decide_nothing(names):
    """A layer of a branch that is called downsample was taken for one that projects the skip."""
    assert named(names) == named(PLAIN)


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.up, self.down = nnx.Linear(width, 2 * width, rngs=rngs), nnx.Linear(2 * width, width, rngs=rngs)
        self.gamma = nnx.Param(jnp.full((width,), 0.1))

    def __call__(self, h):
        return h + self.gamma * self.down(nnx.gelu(self.up(h)))


class Stage(nnx.Module):
    def __init__(self, width, depth, rngs):
        self.layers = nnx.List([Block(width, rngs) for _ in range(depth)])


class Stages(nnx.Module):
    """Only the third of four stages gets deeper, as in ConvNeXt."""

    def __init__(self, width, depth, fixed, rngs):
        self.embed, self.head = nnx.Linear(7, width, rngs=rngs), nnx.Linear(width, 5, rngs=rngs)
        self.stages = nnx.List([Stage(width, n, rngs) for n in (fixed, fixed, depth, fixed)])

    def __call__(self, x):
        h = self.embed(x)
        for stage in self.stages:
            for layer in stage.layers:
                h = layer(h)
        return self.head(h)


@pytest.mark.parametrize("fixed", [1, 2])
def test_blocks_of_stages_of_fixed_depth_are_blocks_like_others(fixed):
    """They compute the same on the same stream, so that no program tells them from those that depth adds: all count."""
    specs, texts = setup(lambda width, depth, rngs: Stages(width, depth, fixed, rngs))
    in_branch = {path.partition("/layers")[0] for path, spec in specs.items() if spec.in_branch}
    assert in_branch == {f"stages/{i}" for i in range(4)}
    (text,) = texts
    assert f"blocks=lambda depth: 1 * depth + {3 * fixed} counts the additions" in text


class Expert(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width, key):
        up, down = jax.random.split(key)
        self.up = eqx.nn.Linear(width, 2 * width, use_bias=False, key=up)
        self.down = eqx.nn.Linear(2 * width, width, use_bias=False, key=down)

    def __call__(self, h):
        return self.down(jax.nn.gelu(self.up(h)))


class Mixture(eqx.Module):
    """Blocks of four experts, stacked along the first axis: (experts, out, in)."""

    embed: eqx.nn.Linear
    routers: list
    mixtures: list
    head: eqx.nn.Linear

    def __init__(self, width, depth, key):
        embed, head, *keys = jax.random.split(key, depth + 2)
        self.embed, self.head = eqx.nn.Linear(7, width, key=embed), eqx.nn.Linear(width, 5, key=head)
        self.routers = [eqx.nn.Linear(width, 4, use_bias=False, key=key) for key in keys]
        make = eqx.filter_vmap(functools.partial(Expert, width))
        self.mixtures = [make(jax.random.split(key, 4)) for key in keys]

    def __call__(self, x):
        h = self.embed(x)
        for router, mixture in zip(self.routers, self.mixtures, strict=True):
            outputs = eqx.filter_vmap(lambda expert, h: expert(h), in_axes=(eqx.if_array(0), None))(mixture, h)
            h = h + jax.nn.softmax(router(h)) @ outputs
        return self.head(h)


def test_experts_of_equinox_are_copies():
    """Their number counted among the outputs, and Muon took all for one matrix."""
    specs, _ = setup(Mixture, call=lambda model, x: jax.vmap(model)(x), fan_in_init=False)
    up, down = (specs[f"mixtures/0/{name}/weight"] for name in ("up", "down"))
    assert (up.fan_in, up.fan_out, up.matrix_axes) == (32, 64, ((2,), (1,)))
    assert (down.fan_in, down.fan_out, down.matrix_axes) == (64, 32, ((2,), (1,)))


class Attention(nn.Module):
    """Attention whose keys have norm 1, if `unit`, and whose logits are divided by sqrt(head_dim), if `root`."""

    width: int
    depth: int
    unit: bool
    root: bool

    @nn.compact
    def __call__(self, x):
        h, size = nn.Dense(self.width, name="embed")(x)[None], self.width // 2
        for i in range(self.depth):
            q, k, v = (nn.DenseGeneral((2, size), use_bias=False, name=f"{name}_{i}")(h) for name in "qkv")
            k = k / jnp.linalg.norm(k, axis=-1, keepdims=True) if self.unit else k
            logits = jnp.einsum("bthd,bshd->bhts", q, k) / (size**0.5 if self.root else 1)
            mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(logits), v)
            h = h + nn.DenseGeneral(self.width, axis=(-2, -1), use_bias=False, name=f"out_{i}")(mixed)
        return nn.Dense(5, name="head")(h)[0]


@pytest.mark.parametrize(
    ("unit", "root", "power"), [(False, True, -0.5), (False, False, -1.0), (True, True, 0.0), (True, False, -0.5)]
)
def test_keys_of_norm_1(unit, root, power):
    """Such products are smaller by a root of the head size, which came on top of the one that the model divides by."""
    m = dm.setup(
        "mup", lambda width, depth: Attention(width, depth, unit, root), X, width=32, depth=2, base=(16, 2),
        fan_in_init=False,
    )  # fmt: skip
    assert f"attention factor {2.0**power:.4g} inside q_*/kernel" in str(m.explain())


class TwoAttentions(nn.Module):
    """The first attention of each block divides its logits by sqrt(head_dim), the second does not. Its layers have any
    names, and both may have one norm of their keys."""

    width: int
    depth: int
    names: tuple[str, str]
    normed: bool = False

    @nn.compact
    def __call__(self, x):
        h, size = nn.Dense(self.width, name="embed")(x)[None], self.width // 2
        norm = nn.RMSNorm(name="keys") if self.normed else lambda k: k
        for i in range(self.depth):
            for attention, root in zip(self.names, (size**0.5, 1), strict=True):
                q, k, v = (nn.DenseGeneral((2, size), use_bias=False, name=f"{attention}{n}{i}")(h) for n in "qkv")
                logits = jnp.einsum("bthd,bshd->bhts", q, norm(k)) / root
                mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(logits), v)
                out = nn.DenseGeneral(self.width, axis=(-2, -1), use_bias=False, name=f"{attention}o{i}")
                h = h + out(mixed)
        return nn.Dense(5, name="head")(h)[0]


@pytest.mark.parametrize(("names", "normed"), [(("a", "b"), False), (("b", "a"), True)])
def test_a_number_belongs_to_the_attention_that_it_multiplies(names, normed):
    """It is told by what the program multiplies, not by how layers are called."""
    m = dm.setup(
        "mup", lambda width, depth: TwoAttentions(width, depth, names, normed), X, width=32, depth=2, base=(16, 2),
        fan_in_init=False,
    )  # fmt: skip
    powers = {
        min(site.inside)[: len(names[0])]: power
        for site in m.source.sites(16, 2)
        for product, power in m.source.attention_powers(16, 2).items()
        if site.kind == "attention" and site.product == product
    }
    assert powers == dict(zip(names, (0.5, 0.0), strict=True))


def kernel(x, up, down, out):
    out[...] = jax.nn.gelu(x[...] @ up[...]) @ down[...]


@jax.custom_vjp
def fused(x, up, down):
    shape = jax.ShapeDtypeStruct((x.shape[0], down.shape[1]), x.dtype)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x, up, down)


def reference(x, up, down):
    return jax.nn.gelu(x @ up) @ down


fused.defvjp(lambda *x: (fused(*x), x), lambda x, g: jax.vjp(reference, *x)[1](g))


class Fused(nn.Module):
    """Blocks that are one Pallas kernel each."""

    width: int
    depth: int
    mlp: object

    @nn.compact
    def __call__(self, x):
        init, width = nn.initializers.lecun_normal(), self.width
        h = nn.Dense(width, name="embed")(x)
        for i in range(self.depth):
            up = self.param(f"up_{i}", init, (width, 2 * width))
            h = h + self.mlp(h, up, self.param(f"down_{i}", init, (2 * width, width)))
        return nn.Dense(5, name="head")(h)


def test_a_kernel_is_not_seen():
    """Its matrices were taken for vectors. What it makes of them is said not to be seen."""
    specs, texts = setup(lambda width, depth: Fused(width, depth, fused))
    plain, none = setup(lambda width, depth: Fused(width, depth, reference))
    assert specs == plain
    assert none == []
    assert len(texts) == 1
    assert texts[0].startswith("what pallas_call makes of down_*, up_* is not seen")
    _, settled = setup(
        lambda width, depth: Fused(width, depth, fused), overrides={"up_*": "branch/hidden", "down_*": "branch/hidden"}
    )
    assert settled == []


def test_weights_that_only_a_kernel_takes_are_asked_for():
    """Where no other matrix shows how they are stored: neither a lookup does, nor what a library does elsewhere."""

    def apply(h, up, down):
        return jax.pure_callback(lambda h, up, down: h @ up @ down, h, h, up, down)

    class Kernels(nn.Module):
        width: int
        depth: int

        @nn.compact
        def __call__(self, tokens, factors):
            init, width = nn.initializers.lecun_normal(), self.width
            h = nn.Embed(5, width, name="embed")(tokens)
            for i in range(self.depth):
                up = self.param(f"up_{i}", init, (width, 2 * width))
                h = h + factors.branch * apply(h, up, self.param(f"down_{i}", init, (2 * width, width)))
            return factors.output * h.mean(axis=-1, keepdims=True)

    def setup(**options):
        tokens = jnp.arange(4)
        return dm.setup("depth_mup", Kernels, tokens, width=32, depth=2, base=(16, 2), fan_in_init=False, **options)

    with pytest.raises(SpecError) as error:
        setup()
    text = str(error.value)
    assert re.match(r"down_0 \(\d+, \d+\): what pure_callback \(.*test_strangers.py:\d+", text)
    pasted = text[text.index("overrides={") + len("overrides=") :]
    for options in ({"overrides": ast.literal_eval(pasted)}, {"layout": "in_out"}):
        roles = {spec.path: (spec.role, spec.fan_in) for spec in leaves_of(setup(**options).specs)}
        assert roles["up_0"] == ("hidden", 32)
        assert roles["down_1"] == ("hidden", 64)


class Summed(nn.Module):
    """An MLP whose products are written as multiply-and-sum, as kernels on small widths are."""

    width: int
    depth: int
    by_hand: bool

    @nn.compact
    def __call__(self, x):
        def apply(h, name, features):
            kernel = self.param(name, nn.initializers.lecun_normal(), (h.shape[-1], features))
            return (h[..., None] * kernel).sum(-2) if self.by_hand else h @ kernel

        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.relu(apply(nn.LayerNorm(name=f"norm_{i}")(h), f"up_{i}", 2 * self.width))
            h = h + apply(y, f"down_{i}", self.width)
        return nn.Dense(5, name="head")(h)


def test_a_product_is_one_however_it_is_written():
    by_hand, _ = setup(lambda width, depth: Summed(width, depth, True))
    products, _ = setup(lambda width, depth: Summed(width, depth, False))
    assert by_hand == products
    assert by_hand["up_0"].placed_role == "branch/hidden"


class AllLayersAtOnce(nn.Module):
    """One matrix makes what each block takes its part of, as Gemma 3n's inputs of each layer."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        parts = nn.Dense(4 * self.depth, use_bias=False, name="parts")(h).reshape(len(x), self.depth, 4)
        for i in range(self.depth):
            gate = nn.Dense(4, name=f"gate_{i}")(nn.LayerNorm(name=f"norm_{i}")(h))
            h = h + nn.Dense(self.width, name=f"out_{i}")(nn.gelu(gate) * parts[:, i])
        return nn.Dense(5, name="head")(h)


def test_outputs_for_all_blocks_are_no_stack():
    specs, _ = setup(AllLayersAtOnce)
    parts = specs["parts/kernel"]
    assert (parts.placed_role, parts.stack_axis, parts.fan_in, parts.fan_out) == ("branch/output", None, 32, 16)


class Conditioned(nn.Module):
    """One matrix makes the condition of all blocks, each as large as the width (WaveGlow)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h, condition = (nn.Dense(self.width, name=name)(x) for name in ("embed", "condition"))
        parts = nn.Dense(self.depth * self.width, use_bias=False, name="parts")(condition)
        for i, part in enumerate(jnp.split(parts, self.depth, axis=1)):
            up = nn.Dense(self.width, name=f"up_{i}")(nn.LayerNorm(name=f"norm_{i}")(h))
            h = h + nn.Dense(self.width, name=f"down_{i}")(nn.gelu(up + part))
        return nn.Dense(5, name="head")(h)


class ScannedBlock(nn.Module):
    width: int

    @nn.compact
    def __call__(self, h, _):
        y = nn.gelu(nn.Dense(2 * self.width, name="up")(nn.LayerNorm(name="norm")(h)))
        return h + nn.Dense(self.width, name="down")(y), None


class OneThenScan(nn.Module):
    """The first block by itself, the others stacked (DeepSeek in MaxText)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h, _ = ScannedBlock(self.width, name="first")(nn.Dense(self.width, name="embed")(x), None)
        others = nn.scan(
            ScannedBlock, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth - 1
        )  # fmt: skip
        h, _ = others(self.width, name="layers")(h, None)
        return nn.Dense(5, name="head")(h)


class Exits(nn.Module):
    """A head behind each block, all returned: early exit."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h, logits = nn.Dense(self.width, name="embed")(x), []
        for i in range(self.depth):
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.gelu(h))
            logits.append(nn.Dense(5, name=f"exit_{i}")(nn.LayerNorm(name=f"norm_{i}")(h)))
        return jnp.stack(logits)


@pytest.mark.parametrize(
    ("factory", "roles"),
    [
        (Conditioned, {"parts/kernel": "branch/hidden"}),
        (OneThenScan, {"layers/up/kernel": "branch/hidden", "layers/up/bias": "branch/vector"}),
        (Exits, {"exit_0/kernel": "readout", "exit_1/bias": "scalar", "norm_0/scale": "vector"}),
    ],
)
def test_what_is_printed_of_parameters_for_all_blocks_is_right(factory, roles):
    """'trunk/hidden' was printed, also of biases, and 'stream' of heads."""
    with pytest.raises((SpecError, dm.ForwardError)) as error:
        setup(factory)
    pasted = ast.literal_eval(re.search(r"(?s)overrides=(\{.*?\})", str(error.value))[1])
    specs, texts = setup(factory, overrides=pasted)
    assert {path: specs[path].placed_role for path in roles} == roles
    assert texts == []


class Hypernetwork(nn.Module):
    """What a layer makes of the inputs is the matrix of each block."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h, w = nn.Dense(self.width, name="embed")(x), self.width
        for i in range(self.depth):
            matrix = nn.Dense(w * w, use_bias=False, name=f"hyper_{i}")(x[:, :4]).reshape(-1, w, w) / w
            h = h + nn.relu(jnp.einsum("bi,bio->bo", nn.LayerNorm(name=f"norm_{i}")(h), matrix))
        return nn.Dense(5, name="head")(h)


def test_a_layer_that_makes_matrices_is_no_layer_that_doubles():
    with pytest.raises(dm.SpecError, match=r"hyper_0/kernel: axis 1 grows from 1024 to 4096 to 16384"):
        setup(Hypernetwork)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_roles_are_those_of_float32_where_bfloat16_is_stored(norm):
    class Net(nn.Module):
        width: int
        depth: int
        dtype: Any

        @nn.compact
        def __call__(self, x):
            types = {"dtype": self.dtype, "param_dtype": self.dtype}
            h = nn.Dense(self.width, **types)(x)
            for _ in range(self.depth):
                h = h + nn.Dense(self.width, **types)(nn.gelu(nn.Dense(self.width, **types)(norm(**types)(h))))
            return nn.Dense(10, **types)(norm(**types)(h))

    def roles(dtype):
        m = dm.setup("completep", lambda width, depth: Net(width, depth, dtype), X, width=64, depth=4, base=(32, 2))
        return {spec.path: (spec.role, spec.in_branch) for spec in leaves_of(m.specs)}

    assert roles(jnp.bfloat16) == roles(jnp.float32)

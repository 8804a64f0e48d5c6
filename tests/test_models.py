"""What the families compute, apart from any parameterization."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup.models import (
    ACTIVATIONS,
    CNN,
    GPT,
    MLP,
    MODELS,
    ResidualCNN,
    ResidualMLP,
    ResNet,
    SimpleResNet,
    ViT,
    resnet,
    stack_blocks,
    states,
    stationary_gain,
    unstack_blocks,
)
from depthmup.models.layers import conv, fan_in_init
from tests.families import CASES, FACTORS, IMAGE, applied, init, inputs, model, variables

COLLECTIONS = ["batch_stats", "stream", "features"]


@pytest.mark.parametrize("case", CASES)
def test_scan_equals_unrolled(case, x64):
    """Logits, every state, statistics and gradients, the unrolled parameters stacked; and back."""
    unrolled, scanned = model(case), model(case, scan=True)
    x, flat = inputs(case), variables(case, unrolled)
    like = jax.eval_shape(lambda: scanned.init(jax.random.key(0), x, FACTORS))
    stacked = {name: stack_blocks(tree, like[name]) for name, tree in flat.items()}
    shapes = {name: jax.tree.map(lambda w: w.shape, dict(like[name])) for name in flat}
    assert jax.tree.map(lambda w: w.shape, stacked) == shapes
    jax.tree.map(np.testing.assert_array_equal, {name: unstack_blocks(tree) for name, tree in stacked.items()}, flat)

    @functools.partial(jax.jit, static_argnums=0)
    def run(module, held):
        def loss(params):
            rngs = {"dropout": jax.random.key(0)}
            train = not getattr(module, "dropout", 0)  # masks are drawn by block: they differ
            logits, sown = module.apply(
                {**held, "params": params}, x, FACTORS, train=train, mutable=COLLECTIONS, rngs=rngs
            )
            return jnp.sum(jnp.sin(logits)), (logits, sown)

        grads, (logits, sown) = jax.grad(loss, has_aux=True)(held["params"])
        return logits, states(sown["stream"]), sown["features"]["hidden"], grads, sown.get("batch_stats", {})

    logits, stream, hidden, grads, statistics = run(unrolled, flat)
    logits_s, stream_s, _, grads_s, statistics_s = run(scanned, stacked)
    assert float(jnp.abs(logits).max()) > 1e-3
    np.testing.assert_allclose(logits_s, logits, rtol=1e-10, atol=1e-12)
    assert len(stream) == len(stream_s) >= 3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), stream_s, stream)
    np.testing.assert_array_equal(hidden, stream[-1])
    grads, statistics = (
        stack_blocks(grads, like["params"]),
        statistics and stack_blocks(statistics, like["batch_stats"]),
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), grads_s, grads)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), statistics_s, statistics)
    again = run(scanned.clone(remat=True), stacked)
    one = logits_s, stream_s, hidden, grads_s, statistics_s
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), again[:2], one[:2])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), again[3:], one[3:])


@pytest.mark.parametrize("case", CASES)
def test_remat_keeps_inputs_of_blocks(case):
    """Scanned or not, the gradient has parts that are computed again, and none without remat."""
    x = inputs(case, dtype=np.float32)
    for attributes in ({"scan": True}, {"scan": False}):
        module = model(case, **attributes)
        shapes = jax.eval_shape(module.init, jax.random.key(0), x, FACTORS)

        def loss(params, module, shapes=shapes):
            statistics = jax.tree.map(lambda s: jnp.zeros(s.shape), shapes.get("batch_stats", {}))
            held = {"params": params, "batch_stats": statistics}
            rngs = {"dropout": jax.random.key(0)}
            return module.apply(held, x, FACTORS, train=True, mutable=["batch_stats"], rngs=rngs)[0].sum()

        for remat in (True, False):
            again = module.clone(remat=remat)
            program = str(jax.make_jaxpr(jax.grad(functools.partial(loss, module=again)))(shapes["params"]))
            assert ("prevent_cse" in program) == remat


def test_equation(x64):
    """h^{l+1} = h^l + b W phi(h^l), logits = c W_out phi(h^L): docs/theory.md section 0."""
    model = ResidualMLP(8, 3, activation="tanh", scan=True)
    x = np.random.default_rng(0).normal(size=(4, 5))
    params = model.init(jax.random.key(0), x, FACTORS)["params"]
    h = x @ params["read_in"]["kernel"]
    for w in params["blocks"]["dense"]["kernel"]:
        h = h + 0.3 * np.tanh(h) @ w
    expected = 0.7 * np.tanh(h) @ params["readout"]["kernel"]
    logits, sown = model.apply({"params": params}, x, FACTORS, mutable=["features"])
    np.testing.assert_allclose(logits, expected, rtol=1e-12)
    np.testing.assert_allclose(sown["features"]["hidden"], h, rtol=1e-12)


def test_plain_equation(x64):
    """Depth counts the read-in: logits = c W_out phi(W_3 phi(W_2 phi(W_1 x))) at depth 3."""
    model = MLP(8, 3, activation="tanh", scan=True)
    x = np.random.default_rng(0).normal(size=(4, 5))
    params = model.init(jax.random.key(0), x, FACTORS)["params"]
    z = x @ params["read_in"]["kernel"]
    assert len(params["blocks"]["dense"]["kernel"]) == 2
    for w in params["blocks"]["dense"]["kernel"]:
        z = np.tanh(z) @ w
    expected = 0.7 * np.tanh(z) @ params["readout"]["kernel"]
    np.testing.assert_allclose(model.apply({"params": params}, x, FACTORS), expected, rtol=1e-12)


def test_scanned_blocks_start_with_weights_of_their_own():
    params = init(ResidualMLP(8, 3, scan=True), np.ones((1, 5)))["params"]
    first, second, third = params["blocks"]["dense"]["kernel"]
    assert not np.allclose(first, second)
    assert not np.allclose(second, third)


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("space", [(7,), (6, 5)])
def test_circular_convolution_is_a_product_of_spectra(kernel, space, x64):
    import flax.linen as nn

    class One(nn.Module):
        @nn.compact
        def __call__(self, x):
            return conv(x, 4, "conv", kernel=kernel, padding="circular")

    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, *space, 3)), rng.normal(size=(*[kernel] * len(space), 3, 4))
    convolved = One().apply({"params": {"conv": {"kernel": w}}}, x)
    axes = tuple(range(1, len(space) + 1))
    padded = np.zeros((*space, 3, 4))
    padded[tuple(slice(kernel) for _ in space)] = w
    # a convolution layer correlates: y[o] = sum_k x[o + k - (kernel - 1) // 2] w[k]
    back = np.roll(padded, [-((kernel - 1) // 2)] * len(space), axis=tuple(range(len(space))))
    spectrum = np.conj(np.fft.fftn(back, axes=tuple(range(len(space)))))
    product = np.einsum("b...c,...cd->b...d", np.fft.fftn(x, axes=axes), spectrum)
    np.testing.assert_allclose(convolved, np.fft.ifftn(product, axes=axes).real, rtol=1e-10, atol=1e-12)


def leaves_like(params, *names):
    flat = jax.tree_util.tree_flatten_with_path(params)[0]
    return [np.asarray(leaf) for path, leaf in flat if all(name in jax.tree_util.keystr(path) for name in names)]


@pytest.mark.parametrize(
    ("module", "shape", "names", "variance"),
    [
        (ResidualMLP(256, 2), (64,), ["read_in"], 1 / 64),
        (ResidualMLP(256, 2), (64,), ["dense"], 1 / 256),
        (ResidualMLP(256, 2), (64,), ["readout"], 1 / 256),
        (MLP(256, 2), (64,), ["dense"], 2 / 256),
        (CNN(64, 2), (8, 8, 3), ["block"], 2 / (9 * 64)),
        (CNN(64, 2, activation="gelu"), (8, 8, 3), ["block"], 2.351716 / (9 * 64)),
        (CNN(64, 2, activation="gelu", gelu_variance="paper"), (8, 8, 3), ["block"], 2 * 2**0.5 / (9 * 64)),
        (ResidualCNN(64, 2, gain=3.0), (8, 8, 3), ["block"], 3 / (9 * 64)),
        (ResidualCNN(64, 2, kernels=(1, 3, 1), bottleneck=4), (8, 8, 3), ["last"], 2 / 16),
        (ResidualCNN(64, 2, kernels=(1, 3, 1), bottleneck=4), (8, 8, 3), ["conv_1"], 2 / (9 * 16)),
        (SimpleResNet(256, 4), (8, 8, 3), ["double_3"], 1 / (9 * 128)),
        (ViT(128, 1), (8, 8, 3), ["key", "kernel"], 1 / 128),
        (ViT(128, 1), (8, 8, 3), ["out", "attention", "kernel"], 1 / 128),
        (ViT(128, 1), (8, 8, 3), ["mlp_out", "kernel"], 1 / 128),
        (ViT(128, 1, patch=2), (8, 8, 3), ["positions"], 1),
        (GPT(128, 1), (32,), ["positions"], 1),
        (GPT(128, 1), (32,), ["embed", "embedding"], 1),
        (GPT(128, 1, tied=True), (32,), ["embed", "embedding"], 0.02**2),
        (GPT(128, 1, tied=True), (32,), ["positions"], 0.02**2),
        (GPT(128, 1), (32,), ["mlp_out", "kernel"], 1 / 512),
        (GPT(128, 1, mlp="gated"), (32,), ["mlp_gate", "kernel"], 1 / 128),
        (GPT(128, 1), (32,), ["readout", "kernel"], 1 / 128),
    ],
)
def test_initial_variance(module, shape, names, variance):
    params = init(module, jnp.ones_like(module.batch_shapes(1, shape)[0]))["params"]
    (kernel, *_) = leaves_like(params, *names)
    assert kernel.var() == pytest.approx(variance, rel=5 * np.sqrt(2 / kernel.size))  # five standard errors


@pytest.mark.parametrize("family", ["vit", "gpt"])
def test_queries_start_at_zero(family):
    params = init(model(family), inputs(family, 1))["params"]
    assert {float(np.abs(leaf).max()) for leaf in leaves_like(params, "query")} == {0}


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh", "erf", "linear"])
def test_stationary_gain(activation):
    z = np.random.default_rng(0).normal(size=2_000_000)
    moment = np.mean(np.asarray(ACTIVATIONS[activation](jnp.asarray(z, jnp.float32)), np.float64) ** 2)
    assert stationary_gain(activation) * moment == pytest.approx(1, abs=5e-3)


@pytest.mark.parametrize("family", ["residual_mlp", "residual_cnn", "simple_resnet", "resnet", "vit", "gpt"])
def test_zero_init_branch(family):
    """With branches at 0 the branch factor does not matter; otherwise it does."""
    x = jnp.asarray(inputs(family, dtype=np.float32))
    for zero, same in ((True, True), (False, False)):
        module = model(family, zero_init_branch=zero)
        held, apply = init(module, x), applied(module)
        one, two = (apply(held, x, FACTORS._replace(branch=b)) for b in (0.3, 3.0))
        assert bool(jnp.array_equal(one, two)) == same


def stream(module, shape):
    """The shapes of the states h^0 .. h^L, without the examples."""
    x = jnp.ones_like(module.batch_shapes(1, shape)[0])
    held = jax.eval_shape(lambda: module.init(jax.random.key(0), x, FACTORS))
    sown = jax.eval_shape(lambda held: module.apply(held, x, FACTORS, mutable=["stream"])[1], held)
    return [h.shape[1:] for h in states(sown["stream"])]


@pytest.mark.parametrize(
    ("case", "attributes", "blocks", "more"),
    [
        ("mlp", dict(depth=3), 3, 0),
        ("residual_mlp", dict(depth=7), 7, 1),
        ("cnn", dict(depth=3), 3, 0),
        ("residual_cnn", dict(depth=2), 2, 1),
        ("simple_resnet", dict(depth=12, count="blocks"), 12, 1),
        ("simple_resnet", dict(depth=12, count="weight_layers"), 17, -4),
        ("resnet", dict(depth=3), 9, 1),  # ResNet-20
        ("resnet", dict(depth=2, stages=(1, 1, 1, 1)), 8, 1),  # ResNet-18
        ("resnet", dict(depth=1, stages=(3, 4, 6, 3)), 16, 1),  # ResNet-34
        ("vit", dict(depth=5), 5, 1),
        ("gpt", dict(depth=5), 5, 1),
    ],
)
def test_block_count(case, attributes, blocks, more):
    """A residual network has a state before its blocks and one after each."""
    module = model(case, **attributes)
    assert module.block_count(module.depth) == blocks
    assert len(stream(module, CASES[case][2])) == blocks + more


def test_simple_resnet_pools():
    """After blocks 3, 6 and 9 of 12 (A.1)."""
    shapes = stream(SimpleResNet(16, 12, scan=False), IMAGE)
    assert shapes == [(8, 8, 2)] * 4 + [(4, 4, 4)] * 3 + [(2, 2, 8)] * 3 + [(1, 1, 16)] * 3


@pytest.mark.parametrize(("layers", "convolutions"), [(18, 20), (34, 36), (50, 53), (20, 21), (110, 111)])
def test_standard_resnets(layers, convolutions):
    """The number of layers counts those that are not projections (3 or 4, or 2 on CIFAR), and the readout."""
    module = resnet(layers, width_multiplier=0.25, scan=False)
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.ones((1, 64, 64, 3)), FACTORS))["params"]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(shapes)[0]]
    assert sum("kernel" in path and "readout" not in path for path in paths) == convolutions
    projections = sum("conv_shortcut" in path for path in paths)
    assert convolutions - projections + 1 == layers
    assert module.width == (16 if layers in (18, 34, 50) else 4)


def test_a_bottleneck_strides_in_its_3x3():
    """As in torchvision: the 1x1 before it sees the whole image."""
    module = model("resnet bottleneck")
    x = jnp.ones((1, 8, 8, 3))
    held = jax.eval_shape(lambda: module.init(jax.random.key(0), x, FACTORS))
    run = functools.partial(module.apply, capture_intermediates=True, mutable=["intermediates"])
    block = jax.eval_shape(run, held, x, FACTORS)[1]["intermediates"]["stage_1"]["block_0"]
    assert [block[f"conv_{i}"]["__call__"][0].shape[1] for i in range(3)] == [8, 4, 4]


def test_no_such_resnet():
    with pytest.raises(ValueError, match="no ResNet of 19 layers: give 18, 34, 50, or 6n"):
        resnet(19)


@pytest.mark.parametrize("case", ["residual_cnn", "simple_resnet", "resnet", "vit", "gpt", "gpt options"])
def test_bfloat16(case):
    """Computes in bfloat16, keeps parameters and statistics, and returns logits, in float32."""
    x = jnp.asarray(inputs(case, dtype=np.float32))
    full, half = model(case), model(case, dtype="bfloat16")
    held = init(half, x)
    assert {leaf.dtype for leaf in jax.tree.leaves(held)} == {jnp.dtype("float32")}
    logits, sown = applied(half, mutable=("features",))(held, x)
    assert logits.dtype == jnp.float32
    assert sown["features"]["hidden"].dtype == jnp.bfloat16
    difference = np.abs(logits - applied(full)(held, x)).max()
    assert 0 < difference < 0.05 * np.abs(logits).max()


def test_dropout_is_for_training_only():
    module, x = model("residual_cnn", norm="none"), jnp.asarray(inputs("residual_cnn", dtype=np.float32))
    held, train = init(module, x), applied(module, train=True)
    one, two, again = (train(held, x, FACTORS, jax.random.key(k)) for k in (0, 1, 0))
    assert not np.allclose(one, two)
    np.testing.assert_array_equal(one, again)
    without = model("residual_cnn", norm="none", dropout=0.0)
    np.testing.assert_array_equal(applied(module)(held, x), applied(without)(held, x))


@pytest.mark.parametrize(
    ("family", "attributes", "shape", "message"),
    [
        ("simple_resnet", dict(width=16, depth=4), (7, 8, 3), r"pools three times: images must be 8x8 or larger"),
        ("simple_resnet", dict(width=16, depth=2), (8, 8, 3), "needs a depth of 3 or more blocks, got 2"),
        ("simple_resnet", dict(width=20, depth=4), (8, 8, 3), "width 20 must divide by 8"),
        ("simple_resnet", dict(width=16, depth=4, pool="mean"), (8, 8, 3), "unknown pool 'mean'"),
        ("simple_resnet", dict(width=16, depth=4, norm="layer"), (8, 8, 3), "unknown norm 'layer'"),
        (
            "resnet",
            dict(width=4, depth=1, stem="imagenet"),
            (8, 8, 3),
            "halves the image 4 times: images must be 16x16",
        ),
        ("resnet", dict(width=4, depth=1, norm="layer"), (4, 4, 3), "8x8 or larger.*layer norm over one pixel is 0"),
        ("resnet", dict(width=4, depth=1, norm="group"), (8, 8, 3), "unknown norm 'group'"),
        ("resnet", dict(width=4, depth=1, stages=(1, 0)), (8, 8, 3), r"stages\[1\] must be at least 1 and less than"),
        ("vit", dict(width=10, depth=1, heads=4), (8, 8, 3), "heads must divide the width: 4 heads, width 10"),
        ("vit", dict(width=8, depth=1, patch=3), (8, 8, 3), "patch must divide the image: patches of 3x3"),
        ("vit", dict(width=8, depth=1, pool="max"), (8, 8, 3), "unknown pool 'max'"),
        ("vit", dict(width=8, depth=1), (64,), "inputs must be .batch, height, width, channels., got"),
        ("gpt", dict(width=8, depth=1), (8, 8, 3), r"inputs must be tokens .batch, context., got .1, 8, 8, 3."),
        ("gpt", dict(width=10, depth=1, heads=4), (6,), "heads must divide the width: 4 heads, width 10"),
        ("gpt", dict(width=12, depth=1, positions="rotary"), (6,), "the head size width / heads = 3 must be even"),
        ("cnn", dict(width=4, depth=2, padding="same"), (8, 3), "unknown padding 'same'"),
        ("cnn", dict(width=4, depth=2, kernels=(9,)), (3, 3), "kernel of 9 needs images of 4 or more"),
        ("cnn", dict(width=4, depth=2, channels=(0.3,)), (8, 3), "0.3 x width 4 must be a whole number of channels"),
        ("cnn", dict(width=4, depth=2, gelu_variance="he"), (8, 3), "unknown gelu_variance 'he'"),
        ("residual_cnn", dict(width=6, depth=2, bottleneck=4), (8, 3), "bottleneck 4 must divide the width 6"),
        ("residual_cnn", dict(width=4, depth=2, dropout=1.0), (8, 3), "dropout must be at least 0 and less than 1"),
        ("residual_cnn", dict(width=4, depth=2, kernels=(3,), dropout=0.1), (8, 3), "between the convolutions"),
        ("residual_mlp", dict(width=4, depth=2, activation="rleu"), (8,), "did you mean 'relu'"),
        ("mlp", dict(width=4, depth=0), (8,), "depth must be at least 1, got 0"),
        ("mlp", dict(width=4, depth=1, dtype="float16"), (8,), "unknown dtype 'float16'"),
    ],
)
def test_errors_come_before_compilation(family, attributes, shape, message):
    module = MODELS[family](**attributes)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.ones((1, *shape)), FACTORS))


def test_layers_may_differ():
    """Channels and kernel sizes layer by layer, repeated from the start."""
    module = CNN(4, 5, channels=(1, 2), kernels=(3, 1, 5), scan=True)
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.ones((1, 8, 3)), FACTORS))["params"]
    kernels = [params[name]["conv"]["kernel"].shape for name in ("read_in", *(f"block_{i}" for i in range(4)))]
    assert kernels == [(3, 3, 4), (1, 4, 8), (5, 8, 4), (3, 4, 8), (1, 8, 4)]


def test_resnet_without_factor_is_post_activation():
    """States after each block are rectified: h = phi(shortcut + b f)."""
    x = jnp.asarray(inputs("resnet", dtype=np.float32))
    module: ResNet = model("resnet")
    _, sown = applied(module, mutable=("stream",))(init(module, x), x)
    assert min(float(h.min()) for h in states(sown["stream"])) == 0


@pytest.mark.parametrize("shape", [(6, 7), (3, 3, 4, 5), (5, 2, 8)])
def test_initial_weights_are_those_of_flax(shape):
    """Bit for bit, though drawn along one axis; also under the vmap of a scanned stack. jax 0.12 rounds differently."""
    maxulp = 0 if jax.__version_info__ < (0, 12) else 2
    expected = nn.initializers.variance_scaling(2.0, "fan_in", "normal", in_axis=range(len(shape) - 1), out_axis=-1)
    keys = jax.random.split(jax.random.key(1), 3)
    np.testing.assert_array_max_ulp(fan_in_init(2.0)(keys[0], shape), expected(keys[0], shape), maxulp=maxulp)
    drawn, flax_drawn = (jax.vmap(lambda key, f=f: f(key, shape))(keys) for f in (fan_in_init(2.0), expected))
    np.testing.assert_array_max_ulp(drawn, flax_drawn, maxulp=maxulp)

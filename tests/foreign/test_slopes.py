"""What Adam's first step changes, parameter by parameter, at several widths and depths of models that are not ours.

Independent of the library's own check: no features are looked for, and all parameters move from the same start. To
first order the update of a parameter changes a fixed function of the logits by <gradient, update>. Summed over the
blocks, this must depend on neither width nor depth.
"""

import fnmatch
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup as dm
from depthmup.reading.graph import products
from tests.foreign.models import MODELS
from tests.foreign.roles import by_path
from tests.foreign.streams import SharedBlock
from tests.foreign.table import Foreign

WIDTHS, DEPTHS = (32, 64, 128), (2, 4, 8, 16)  # at depth 4 and at width 64
SEEDS = 32
LIMIT = 0.25
# Over width: attention of 1/head_dim has gradients of head_dim^-1/2 at the first step.
QUERIES = (-0.9, 0.25)
# A softmax does not see what all its logits have in common: the gradient is rounding errors.
STILL = "*/key/bias"
NAMES = (
    "film", "dit_modulated", "gnn_with_edges", "encoder_decoder", "t5", "two_heads", "two_heads_value", "actor_critic",
    "one_channel", "rwkv4", "rwkv_read_before", "min_gru", "llama", "gpt_scanned", "gpt_heads_grow",
    "time_beside_the_branch", "input_in_every_block", "griffin", "stacked_in_a_loop", "wavenet",
    "siglip_joint_grows", "cosine_classifier", "edges_and_nodes", "post_ln", "nanochat", "attention_pooling",
    "transformer_xl", "resampler", "set_transformer", "squeezed", "mixture_density", "feature_pyramid",
    "masked_autoencoder", "fixed_head", "multi_query", "outer_skip", "parallel_blocks", "picked_tokens",
    "several_updates_of_edges", "one_list_of_inverted_residuals", "shared_block", "shared_post_norm", "alibi",
    "graph_distances", "low_rank", "product_of_two", "layer_norm_scaling", "value_residual", "value_residual_learned",
    "siamese", "unrolled", "ensemble", "equinox_without_bias", "board",
    "value_behind_a_bottleneck", "bottlenecks", "pointer_generator", "two_towers",
    "layers_between_that_keep_size", "linear_attention", "linear_transformer",
    "pre_activation_resnet", "two_stacks_by_number", "resized_positions", "hyper_connections",
    "hyper_connections_dynamic",
)  # fmt: skip
# 16 blocks take too long to compile.
SHALLOW = (
    "dit_modulated", "encoder_decoder", "rwkv4", "rwkv_read_before", "transformer_xl", "resampler",
    "masked_autoencoder", "siamese", "unrolled", "value_residual", "value_residual_learned",
)  # fmt: skip
# In wavenet the last block moves nothing through the stream: L - 1 blocks do, half of them at depth 2. At depth 2
# nanochat takes the last state away from itself. What hyper-connections write with has a term in 1/L.
LATE = {
    "wavenet": (4, 8, 16, 32),
    "hyper_connections": (4, 8, 16, 32),
    "hyper_connections_dynamic": (4, 8, 16, 32),
    "nanochat": (4, 8, 16),
    "layers_between_that_keep_size": (4, 8, 16),
    "one_list_of_inverted_residuals": (4, 8, 16),
}


def changes(m: dm.Setup, model: Foreign) -> dict[str, float]:
    """{path, with * for the number of a block: mean over seeds of |<gradient, first update of Adam>|, summed over the
    blocks}, of the sum of the logits with random signs."""
    tx = m.optimizer("adam", 1.0, eps=1e-12)

    def drawn(key, x):
        return jax.random.normal(key, x.shape) if jnp.issubdtype(x.dtype, jnp.floating) else x

    @jax.jit
    def change(params, state, key):
        one, other = jax.random.split(key)
        inputs = [drawn(jax.random.fold_in(one, i), x) for i, x in enumerate(model.inputs)]

        def signed(params):
            logits = model.loss(m.model.run(params, state, *inputs)[0])
            return (jax.random.rademacher(other, logits.shape) * logits).sum()

        grads = jax.grad(signed)(params)
        updates, _ = tx.update(grads, tx.init(params), params)
        return jax.tree.map(lambda g, u: jnp.abs(jnp.vdot(g, u).real), grads, updates)

    start = jax.jit(m.fresh) if m.model.init_calls else m.fresh
    keys = [jax.random.split(jax.random.key(seed)) for seed in range(SEEDS)]
    means = np.mean([jax.tree.leaves(change(*start(one), other)) for one, other in keys], 0)
    total: dict[str, float] = {}
    for spec, mean in zip(by_path(m.specs).values(), means, strict=True):
        path = re.sub(r"(?<=[_/])\d+(?=[_/]|$)", "*", spec.path)  # (t1 and t2 stay apart)
        total[path] = total.get(path, 0.0) + float(mean)
    return total


def slopes(sizes: tuple[int, ...], per_size: list[dict[str, float]]) -> dict[str, float]:
    """{path: slope in log-log}, of the parameters that act on the logits at all."""
    acting = [path for path, value in per_size[0].items() if value and not fnmatch.fnmatchcase(path, STILL)]
    return {path: np.polyfit(np.log(sizes), np.log([at[path] for at in per_size]), 1)[0] for path in acting}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_first_step_is_flat(name):
    model = MODELS[name]
    at = functools.cache(lambda width, depth: changes(model.setup[0].at(width, depth), model))
    depths = DEPTHS[:-1] if name in SHALLOW else LATE.get(name, DEPTHS)
    wrong = []
    for axis, sizes, per_size in (
        ("width", WIDTHS, [at(width, 4) for width in WIDTHS]),
        ("depth", depths, [at(64, depth) for depth in depths]),
    ):
        for path, slope in slopes(sizes, per_size).items():
            query = axis == "width" and any(fnmatch.fnmatchcase(path, glob) for glob in model.queries)
            low, high = QUERIES if query else (-LIMIT, LIMIT)
            if not low <= slope <= high:
                wrong.append(f"{path}: {axis}^{slope:+.2f}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_norms_after_the_sum_as_layers_outside_the_blocks():
    """With one learning rate at every depth L norms after the sums move the logits L times as far."""
    model = MODELS["post_ln"]
    m = model.set_up(overrides={"block_*/norm?/*": "trunk"})
    over_depth = slopes(DEPTHS, [changes(m.at(64, depth), model) for depth in DEPTHS])
    norms = {path: slope for path, slope in over_depth.items() if "/norm" in path}
    assert norms
    assert all(abs(slope - 1) < LIMIT for slope in norms.values()), norms


@pytest.mark.slow
def test_blocks_that_share_their_weights_add_up_as_depth():
    """Divided by sqrt(depth), what they add still grows, and so does their first step."""
    model = Foreign(
        functools.partial(SharedBlock, power=0.5), MODELS["shared_block"].inputs, options={"residual": False}
    )
    m = model.set_up()
    measured = slopes(DEPTHS, [changes(m.at(64, depth), model) for depth in DEPTHS])
    of_blocks = [slope for path, slope in measured.items() if path.startswith(("up/", "down/"))]
    assert all(0.5 < slope < 0.65 for slope in of_blocks), measured


@pytest.mark.slow
def test_towers_before_a_joint_space_of_fixed_size():
    """A random projection of variance 1/fan_in to a fixed size: the towers' first step grows as width^1/2
    (docs/rules.md, section 0), whatever its role, since its result is normalized."""
    model = MODELS["siglip"]
    over_width = slopes(WIDTHS, [changes(model.setup[0].at(width, 4), model) for width in WIDTHS])
    assert all(abs(slope - 0.5) < LIMIT for path, slope in over_width.items() if path.startswith(("image/", "text/")))
    assert all(abs(over_width[path]) < LIMIT for path in ("image_proj/kernel", "text_proj/kernel"))


@pytest.mark.slow
def test_inside_branches_on_a_stream_of_fixed_size():
    """All that the width computes goes through random projections of variance 1/width to the stream: what is in front
    of them moves it as width^1/2 in the first step (docs/rules.md, section 0)."""
    model = MODELS["fixed_stream"]
    measured = slopes(WIDTHS, [changes(model.setup[0].at(width, 4), model) for width in WIDTHS])
    inside = [slope for path, slope in measured.items() if "_up/" in path]
    assert all(0.4 < slope < 0.6 for slope in inside), measured
    assert all(abs(slope) < LIMIT for path, slope in measured.items() if "_up/" not in path), measured


@pytest.mark.slow
def test_a_dense_block_before_experts_counts_as_a_block():
    """One block of L moves the logits as 1/L, the L - 1 others together as (L - 1)/L."""
    model = MODELS["dense_before_experts"]
    depths = (4, 8, 16)
    measured = slopes(depths, [changes(model.setup[0].at(64, depth), model) for depth in depths])
    others = np.polyfit(np.log(depths), np.log([1 - 1 / depth for depth in depths]), 1)[0]
    for path, slope in measured.items():
        if "_dense_" in path:
            assert abs(slope + 1) < LIMIT, measured
        elif path.startswith("block_"):
            assert abs(slope - others) < LIMIT, measured


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "low", "high"), [(True, -LIMIT, LIMIT), (False, 0.3, 0.36)])
def test_products_of_linear_attention_as_training_goes_on(factor, low, high, monkeypatch):
    """What ten steps add to products of queries and keys does not grow with width: without the factor it grows as
    width^0.33."""
    if not factor:
        monkeypatch.setattr(products, "bilinear", lambda graph: ())
    model, widths = MODELS["linear_attention"], (64, 128, 256, 512)
    tokens, labels = (jax.random.randint(jax.random.key(seed), (8, 16), 0, 20) for seed in (0, 1))

    def moved(m: dm.Setup, seed: int) -> jax.Array:
        params, state = m.fresh(jax.random.key(seed))
        tx = m.optimizer("adam", 2**-5)

        def loss(params):
            logits = m.model.run(params, state, tokens)[0]
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        def multiplied(params):
            _, seen = m.model.made.apply({"params": params}, tokens, capture_intermediates=True)
            q, k = (seen["intermediates"][f"block_0_{name}"]["__call__"][0] for name in "qk")
            return jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5

        def step(carry, _):
            params, opt = carry
            updates, opt = tx.update(jax.grad(loss)(params), opt, params)
            return (optax.apply_updates(params, updates), opt), None

        (trained, _), _ = jax.lax.scan(step, (params, tx.init(params)), length=10)
        return jnp.sqrt(jnp.square(multiplied(trained) - multiplied(params)).mean())

    setup = model.set_up()
    sizes = [jax.jit(functools.partial(moved, setup.at(width, 2))) for width in widths]
    means = [np.mean([of_seed(seed) for seed in range(8)]) for of_seed in sizes]
    assert low < np.polyfit(np.log(widths), np.log(means), 1)[0] < high

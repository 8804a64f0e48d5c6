"""nanodo's decoder and state (google-deepmind/nanodo, 10aefde), restated; the lines with `m` are what depthmup adds.

python examples/nanodo_lm.py --width=256 --depth=12
"""

import argparse
import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from jax.sharding import AxisType

import depthmup as dm
from depthmup.data import load

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
for name, default in {"width": 128, "depth": 6, "steps": 100, "learning_rate": 2**-9}.items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
args = parser.parse_args()


class DoConfig(NamedTuple):
    """nanodo's letters: width, heads, context, blocks, vocabulary, hidden units."""

    D: int
    H: int
    L: int
    N: int
    V: int
    F: int


def split(*axes):
    """The init of a kernel that is split over the devices: nanodo's fsdp.init."""
    return nn.with_partitioning(nn.initializers.xavier_uniform(), axes)


class TransformerDo(nn.Module):
    cfg: DoConfig

    @nn.compact
    def __call__(self, tokens):
        c, norm = self.cfg, functools.partial(nn.LayerNorm, use_bias=False)
        dense = functools.partial(nn.DenseGeneral, use_bias=False)
        embed = nn.Embed(c.V, c.D, name="embed")
        h = embed(tokens) + nn.Embed(c.L, c.D, name="pos_embed")(jnp.arange(tokens.shape[1]))
        for i in range(c.N):
            heads = functools.partial(dense, (c.H, c.D // c.H), kernel_init=split("data", None, None))
            y = norm(name=f"norm_{i}_0")(h)
            q, k, v = (heads(name=f"{name}_{i}")(y) for name in ("query", "key", "value"))
            y = nn.dot_product_attention(q, k, v, mask=nn.make_causal_mask(tokens))
            h += dense(c.D, axis=(-2, -1), kernel_init=split(None, None, "data"), name=f"attn_out_proj_{i}")(y)
            y = dense(c.F, kernel_init=split("data", None), name=f"up_{i}")(norm(name=f"norm_{i}_1")(h))
            h += dense(c.D, kernel_init=split("data", None), name=f"down_{i}")(nn.gelu(y))
        return embed.attend(norm(name="out_ln")(h))


text = load("text")
context = text.train.inputs.shape[1]


def build(width, depth):
    return TransformerDo(DoConfig(D=width, H=width // 32, L=context, N=depth, V=text.classes, F=4 * width))


tokens = jnp.zeros((1, context), jnp.int32)
m = dm.setup("completep", build, tokens, width=args.width, depth=args.depth, base=(64, 2), fan_in_init=True)


def get_optimizer():
    schedule = optax.warmup_cosine_decay_schedule(0, args.learning_rate, args.steps // 10, args.steps)
    tx = m.wrap(optax.adamw(schedule, b2=0.98, eps=1e-9, weight_decay=0.1))
    return optax.MultiSteps(optax.chain(m.clip_by_global_norm(1.0), tx), every_k_schedule=2)


def init(key):
    params = m.init(key)
    return TrainState.create(apply_fn=build(args.width, args.depth).apply, params=params["params"], tx=get_optimizer())


mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
shardings = nn.get_sharding(jax.eval_shape(init, jax.random.key(0)), mesh)
state = jax.jit(init, out_shardings=shardings)(jax.random.key(0))


@jax.jit(donate_argnums=0, out_shardings=(shardings, None))
def train(state, tokens, targets):
    def loss(params):
        logits = state.apply_fn({"params": params}, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


losses = []
for step in range(args.steps):
    chosen = jax.random.randint(jax.random.key(step), (16,), 0, len(text.train.inputs))
    state, value = train(state, *(leaf[chosen].astype(jnp.int32) for leaf in text.train[:2]))
    losses.append(float(value))
print(m.explain(optimizer="adamw", learning_rate=args.learning_rate), f"loss {losses[-1]:.3f}", sep="\n")

"""big_vision's ViT and optimizer (google-research/big_vision, 0127fb6), restated; the lines with `m` are depthmup's.

python examples/big_vision_vit.py --width=256 --depth=12
"""

import argparse

import flax.linen as nn
import jax
import optax

import depthmup as dm
from depthmup.data import load

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
for name, default in {"width": 128, "depth": 6, "steps": 100, "learning_rate": 2**-8}.items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
args = parser.parse_args()


class Model(nn.Module):
    """A stem, blocks, a mean and a head that starts at 0; gives the logits and what it met on the way."""

    width: int
    depth: int
    num_heads: int
    num_classes: int = 10

    @nn.compact
    def __call__(self, image):
        out, init = {}, nn.initializers.xavier_uniform()
        x = nn.Conv(self.width, (2, 2), strides=(2, 2), padding="VALID", name="embedding")(image)
        x = x.reshape(len(x), -1, self.width)
        positions = nn.initializers.normal(self.width**-0.5)
        x = x + self.param("pos_embedding", positions, (1, *x.shape[1:]))
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"block{i}_norm0")(x)
            x = x + nn.MultiHeadDotProductAttention(self.num_heads, kernel_init=init, name=f"block{i}_attention")(y, y)
            y = nn.LayerNorm(name=f"block{i}_norm1")(x)
            y = nn.gelu(nn.Dense(4 * self.width, kernel_init=init, name=f"block{i}_up")(y))
            x = out[f"block{i:02d}"] = x + nn.Dense(self.width, kernel_init=init, name=f"block{i}_down")(y)
        out["encoded"] = nn.LayerNorm(name="encoder_norm")(x)
        x = nn.tanh(nn.Dense(self.width, name="pre_logits")(out["encoded"].mean(axis=1)))
        return nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros, name="head")(x), out


def make(lr, wd, schedule):
    """As optax.make: the rate first, then decay, which only the schedule multiplies."""

    def kernels(params):
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)

    adam, decay = optax.scale_by_adam(b2=0.95), optax.add_decayed_weights(wd, kernels)
    return optax.chain(adam, optax.scale(lr), decay, optax.scale_by_schedule(schedule), optax.scale(-1))


digits = load("digits").train
images, labels = digits.inputs.reshape(-1, 8, 8, 1).astype("float32"), digits.labels


def build(width, depth):
    return Model(width=width, depth=depth, num_heads=width // 32)


shape = {"width": args.width, "depth": args.depth, "base": (64, 2)}
m = dm.setup("completep", build, images[:1], **shape, fan_in_init=True, output=lambda out: out[0])
params = m.init(jax.random.key(0))["params"]
tx = make(args.learning_rate, 1e-4, optax.cosine_decay_schedule(1.0, args.steps))
tx = optax.chain(m.clip_by_global_norm(1.0), m.wrap(tx))
state = tx.init(params)


@jax.jit
def update(params, state, images, labels):
    def loss(params):
        logits, _ = build(args.width, args.depth).apply({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, grads = jax.value_and_grad(loss)(params)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


losses = []
for step in range(args.steps):
    chosen = jax.random.randint(jax.random.key(step), (64,), 0, len(labels))
    params, state, value = update(params, state, images[chosen], labels[chosen])
    losses.append(float(value))
print(m.explain(optimizer="adamw", learning_rate=args.learning_rate), f"loss {losses[-1]:.3f}", sep="\n")

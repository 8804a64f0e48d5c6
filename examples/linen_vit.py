"""A ViT in Flax Linen on the digits of scikit-learn: the learning rate of a small one, used at any width and depth.

python examples/linen_vit.py --width 64 --depth 4      # tune here
python examples/linen_vit.py --width 256 --depth 16    # the same learning rate
"""

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import depthmup as dm
from depthmup.data import load

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
for name, default in {"width": 64, "depth": 4, "batch": 64, "epochs": 20, "learning_rate": 2**-7}.items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
args = parser.parse_args()


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, h):
        h = h + nn.MultiHeadDotProductAttention(4, name="attention")(nn.LayerNorm(name="norm_1")(h))
        y = nn.gelu(nn.Dense(4 * self.width, name="up")(nn.LayerNorm(name="norm_2")(h)))
        return h + nn.Dense(self.width, name="down")(y)


class ViT(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, images):  # (batch, 8, 8, 1)
        h = nn.Conv(self.width, (2, 2), strides=(2, 2), name="patches")(images).reshape(len(images), 16, self.width)
        h = h + self.param("positions", nn.initializers.normal(0.02), (16, self.width))
        for i in range(self.depth):
            h = Block(self.width, name=f"block_{i}")(h)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h).mean(axis=1))


digits = load("digits")
images, labels = digits.train.inputs.reshape(-1, 8, 8, 1).astype("float32"), digits.train.labels
per_epoch = len(labels) // args.batch

m = dm.setup("completep", ViT, images[:1], width=args.width, depth=args.depth, base=(64, 4), fan_in_init=True)
print(m.explain(optimizer="adamw", learning_rate=args.learning_rate))
params = m.init(jax.random.key(0))
schedule = optax.cosine_decay_schedule(args.learning_rate, args.epochs * per_epoch)
tx = m.optimizer("adamw", schedule, weight_decay=0.1)
state = tx.init(params)


@jax.jit
def train(params, state, images, labels):
    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(m.apply(params, images), labels).mean()

    value, grads = jax.value_and_grad(loss)(params)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


for epoch in range(args.epochs):
    order = jax.random.permutation(jax.random.key(epoch), len(labels))
    for i in range(per_epoch):
        chosen = order[i * args.batch : (i + 1) * args.batch]
        params, state, value = train(params, state, images[chosen], labels[chosen])
    print(f"epoch {epoch + 1}: loss {value:.4f}")

held_out = digits.validation
logits = jax.jit(m.apply)(params, held_out.inputs.reshape(-1, 8, 8, 1).astype("float32"))
print(f"validation accuracy {jnp.mean(logits.argmax(axis=-1) == held_out.labels):.3f}")

"""A Haliax model, as Levanter's are made of; the lines with `m` are those that depthmup adds.

python examples/haliax_mlp.py --width=256 --depth=16    # needs `pip install --pre haliax`
"""

import argparse

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import optax

import depthmup as dm

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--depth", type=int, default=8)
parser.add_argument("--steps", type=int, default=100)
args = parser.parse_args()


class Block(eqx.Module):
    norm: hnn.LayerNorm
    up: hnn.Linear
    down: hnn.Linear

    def __init__(self, Embed, key):
        first, last = jax.random.split(key)
        Mlp = Embed.alias("mlp").resize(2 * Embed.size)
        self.norm = hnn.LayerNorm.init(Embed)
        self.up, self.down = hnn.Linear.init(Embed, Mlp, key=first), hnn.Linear.init(Mlp, Embed, key=last)


class Net(eqx.Module):
    embed: hnn.Linear
    blocks: list[Block]
    norm: hnn.LayerNorm
    head: hnn.Linear

    def __init__(self, width, depth, key):
        first, last, *keys = jax.random.split(key, depth + 2)
        Embed = hax.Axis("embed", width)
        self.embed = hnn.Linear.init(hax.Axis("pixel", 64), Embed, key=first)
        self.blocks = [Block(Embed, key) for key in keys]
        self.norm, self.head = hnn.LayerNorm.init(Embed), hnn.Linear.init(Embed, hax.Axis("class", 10), key=last)

    def __call__(self, x):
        h = self.embed(hax.named(x, ("batch", "pixel")))
        for block in self.blocks:
            h = h + block.down(hnn.gelu(block.up(block.norm(h))))
        return self.head(self.norm(h)).rearrange(("batch", "class")).array


x = jax.random.normal(jax.random.key(1), (256, 64))
labels = x[:, :10].argmax(axis=1)
m = dm.setup("completep", Net, x[:2], width=args.width, depth=args.depth, base=(32, 2), fan_in_init=True)
model = m.init(jax.random.key(0))
tx = m.optimizer("adamw", 2.0**-8, weight_decay=0.01)
state = tx.init(eqx.filter(model, eqx.is_inexact_array))


@eqx.filter_jit
def step(model, state):
    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), labels).mean()

    value, grads = eqx.filter_value_and_grad(loss)(model)
    updates, state = tx.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), state, value


losses = []
for _ in range(args.steps):
    model, state, value = step(model, state)
    losses.append(float(value))
print(m.explain(optimizer="adamw", learning_rate=2.0**-8), losses[-1], sep="\n")

"""A residual MLP in Equinox on the digits of scikit-learn: nothing in the model knows of widths or depths elsewhere.

python examples/equinox_mlp.py --width 512 --depth 32    # the learning rate is the best of width 64, depth 4
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import depthmup as dm
from depthmup.data import load

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
for name, default in {"width": 64, "depth": 4, "steps": 500, "learning_rate": 2**-8}.items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
args = parser.parse_args()


class Net(eqx.Module):
    embed: eqx.nn.Linear
    blocks: list
    head: eqx.nn.Linear

    def __init__(self, width, depth, key):
        first, last, *keys = jax.random.split(key, depth + 2)
        self.embed, self.head = eqx.nn.Linear(64, width, key=first), eqx.nn.Linear(width, 10, key=last)
        self.blocks = [eqx.nn.Linear(width, width, key=k) for k in keys]

    def __call__(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(jax.nn.gelu(h))
        return self.head(h)


digits = load("digits")
train, held_out = (
    (split.inputs.reshape(len(split.labels), -1).astype("float32"), split.labels)
    for split in (digits.train, digits.validation)
)
m = dm.setup("depth_mup", Net, train[0][0], width=args.width, depth=args.depth, base=(64, 4), fan_in_init=True)
model = m.init(jax.random.key(0))
tx = m.optimizer("adamw", optax.cosine_decay_schedule(args.learning_rate, args.steps), weight_decay=0.1)
state = tx.init(eqx.filter(model, eqx.is_array))


def loss(model, x, labels):
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), labels).mean()


@eqx.filter_jit
def step(model, state, x, labels):
    value, grads = eqx.filter_value_and_grad(loss)(model, x, labels)
    updates, state = tx.update(grads, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, value


for number in range(args.steps):
    chosen = jax.random.randint(jax.random.fold_in(jax.random.key(1), number), (64,), 0, len(train[1]))
    model, state, value = step(model, state, *(leaf[chosen] for leaf in train))
    if (number + 1) % 100 == 0:
        print(f"step {number + 1}: loss {value:.4f}")

x, labels = held_out
print(f"validation accuracy {jnp.mean(jax.vmap(model)(x).argmax(axis=-1) == labels):.3f}")

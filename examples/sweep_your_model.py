"""Does the best learning rate of your model transfer? A sweep over widths and depths, with a verdict and a picture.

python examples/sweep_your_model.py --workdir runs/mlp    # interrupt it when you like: the same command goes on
"""

import argparse

import flax.linen as nn
import numpy as np
import optax

import depthmup as dm
from depthmup.data import load

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--workdir", default="runs/sweep_your_model")
parser.add_argument("--steps", type=int, default=300)
args = parser.parse_args()


class Net(nn.Module):  # your model: any factory of (width, depth), in Linen, NNX, Equinox or Haiku
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
        return nn.Dense(10, name="head")(h)


def loss(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


digits = load("digits")
x, labels = digits.train.inputs.reshape(-1, 64).astype("float32"), digits.train.labels
m = dm.setup("depth_mup", Net, x[:1], width=64, depth=4, base=(64, 4), fan_in_init=True)
result = m.sweep(
    loss,
    (x, labels),
    batch_size=64,
    steps=args.steps,
    optimizer="adamw",
    learning_rates=2.0 ** np.arange(-11, -3),
    per_octave=1,
    widths=(64, 128, 256),
    depths=(4, 8, 16),
    against=("sp",),
    workdir=args.workdir,
)
print(result)
print(f"report: {result.report()}")
result.plot(f"{args.workdir}/picture.png")

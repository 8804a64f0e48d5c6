"""A Keras 3 model on JAX, trained by `fit`; the lines with `dk` are those that depthmup adds.

python examples/keras_fit.py --width=256 --depth=16    # needs `pip install keras`
"""

import argparse
import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

from depthmup import keras as dk

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--depth", type=int, default=8)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--learning_rate", type=float, default=2.0**-9)
args = parser.parse_args()


def build(width, depth):
    inputs = keras.Input((64,))
    h = keras.layers.Dense(width)(inputs)
    for _ in range(depth):
        y = keras.layers.Dense(2 * width, activation="gelu")(keras.layers.LayerNormalization()(h))
        h = keras.layers.Add()([h, keras.layers.Dense(width)(y)])
    return keras.Model(inputs, keras.layers.Dense(10)(keras.layers.LayerNormalization()(h)))


x = np.random.default_rng(0).normal(size=(1024, 64)).astype("float32")
labels = x[:, :10].argmax(axis=1)
m = dk.setup("completep", build, x[:2], width=args.width, depth=args.depth, base=(32, 2), fan_in_init=True)
model = dk.initialized(m, build(args.width, args.depth), jax.random.key(0))
optimizer = dk.scaled(m, model, keras.optimizers.AdamW)(args.learning_rate, weight_decay=0.01)
model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(x, labels, batch_size=args.batch_size, epochs=args.epochs, shuffle=False, verbose=0).history["loss"]
print(m.explain(optimizer="adamw", learning_rate=args.learning_rate), history, sep="\n")

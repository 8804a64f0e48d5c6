"""The cases that `tests/parity.py` computes in PyTorch and `tests/test_parity.py` compares.

Weights and inputs are made here by NumPy from names alone, so that the files in tests/golden/ hold results only.
"""

import functools
import math
import zlib
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

import depthmup as dm
from depthmup.models import GPT, Model, SimpleResNet, ViT, resnet

FOLDER = Path(__file__).with_suffix("")
TOLERANCE = 1e-8  # of the largest entry of a leaf
OUTPUTS = 7


class Case(NamedTuple):
    model: Model
    factors: dm.ForwardFactors
    shape: tuple[int, ...]  # of the inputs; sides that differ tell rows from columns
    train: bool = False


def simple(shape, **options):
    model = SimpleResNet(16, 5, OUTPUTS, scan=False, **options)
    return Case(model, dm.ForwardFactors(0.6, 1.7, None), (3, *shape, 3))


def resnet18(train):
    model = resnet(18, width_multiplier=1 / 32, outputs=OUTPUTS, scan=False)
    return Case(model, dm.ForwardFactors(0.6, 1.7, None), (4, 48, 64, 3), train)


def vit(shape, **options):
    return Case(ViT(16, 2, OUTPUTS, scan=False, patch=4, **options), dm.ForwardFactors(0.6, 1.7, 1.3), (3, *shape, 3))


def gpt(**options):
    """More tokens than attention stores the scores of, so that it runs in blocks."""
    return Case(GPT(16, 2, OUTPUTS, heads=4, scan=False, **options), dm.ForwardFactors(0.6, 1.7, 1.3), (1, 515))


LLAMA = {"positions": "rotary", "norm": "rms", "mlp": "gated", "activation": "silu", "use_bias": False, "kv_heads": 2}
CASES = {
    "simple_resnet": simple((16, 16)),
    "simple_resnet_max_circular": simple((16, 24), pool="max", padding="circular"),
    "resnet18_train": resnet18(train=True),
    "resnet18_eval": resnet18(train=False),
    "vit": vit((8, 8)),
    "vit_mean_no_norm": vit((8, 12), norm="none", pool="mean"),
    "gpt": gpt(tied=True),
    "gpt_llama": gpt(**LLAMA),
}


def normal(name, shape):
    """Standard normal numbers of this name. RandomState: its stream is frozen, that of a Generator is not."""
    return np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)


def weights(shapes):
    """Variables for a tree of shapes: no leaf at zero, so that no gradient is zero for want of one (queries)."""

    def leaf(path, shape):
        z, kind = normal(path, shape), path.split("/")[-1]
        if kind == "kernel":
            return z / math.sqrt(math.prod(shape[:-1]))
        if kind == "scale":
            return 1 + 0.3 * np.tanh(z)
        return np.exp(0.3 * z) if kind == "var" else 0.3 * z

    flat = flatten_dict(shapes, sep="/")
    return unflatten_dict({path: leaf(path, array.shape) for path, array in flat.items()}, sep="/")


def variables(case):
    """{"params", and with batch norm "batch_stats"} of a case, float64."""

    def init(x):
        return case.model.init(jax.random.key(0), x, case.factors, mutable=["params", "batch_stats"])

    return weights(jax.eval_shape(init, jax.ShapeDtypeStruct(case.shape, inputs(case)[0].dtype)))


def inputs(case):
    """Images (batch, height, width, channels) and labels, or tokens and the label of each."""
    if case.model.tokens:
        return tuple(np.random.RandomState(0).randint(0, OUTPUTS, (2, *case.shape)))
    return normal("inputs", case.shape), np.arange(case.shape[0]) * 2 % OUTPUTS


@functools.cache
def program(name):
    """(variables, factors, inputs, labels) -> logits, gradients of the mean cross-entropy, new batch statistics."""
    model, _, _, train = CASES[name]

    def loss(params, others, factors, x, y):
        logits, new = model.apply({"params": params, **others}, x, factors, train, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), (logits, new)

    def run(variables, factors, x, y):
        others = {kind: tree for kind, tree in variables.items() if kind != "params"}
        grads, (logits, new) = jax.grad(loss, has_aux=True)(variables["params"], others, factors, x, y)
        return logits, grads, new.get("batch_stats", {}) if train else {}

    return jax.jit(run)


def flax_numbers(name, **factors):
    """Our numbers under the keys of the files: "logits", "grad:<path>", in train mode "stats:<path>". Needs x64.

    factors: those to replace.
    """
    case = CASES[name]
    logits, grads, stats = program(name)(variables(case), case.factors._replace(**factors), *inputs(case))
    return keyed(logits, flatten_dict(grads, sep="/"), flatten_dict(stats, sep="/"))


def keyed(logits, grads, stats):
    """As the files have it."""
    arrays = {"logits": logits}
    arrays |= {f"grad:{path}": array for path, array in grads.items()}
    arrays |= {f"stats:{path}": array for path, array in stats.items()}
    return {key: np.asarray(array) for key, array in arrays.items()}


def zero(key):
    """Is this gradient 0 for all weights? A key bias adds q . bias to all scores of a query: softmax ignores it."""
    return key.endswith("attention/key/bias")


def differences(computed, golden):
    """Largest difference per key, over the largest entry of that key (where that is 0, of all gradients)."""
    largest = max(np.abs(array).max() for key, array in golden.items() if key.startswith("grad:"))
    return {
        key: np.abs(computed[key] - expected).max() / (largest if zero(key) else np.abs(expected).max())
        for key, expected in golden.items()
    }

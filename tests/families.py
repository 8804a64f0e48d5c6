"""Every family at a size for tests: (attributes, input shape)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import depthmup as dm
from depthmup.models import MODELS

FACTORS = dm.ForwardFactors(0.3, 0.7, 0.2)
IMAGE = (8, 8, 3)
CASES = {
    "mlp": ("mlp", dict(width=8, depth=3, use_bias=True), (5,)),
    "residual_mlp": ("residual_mlp", dict(width=8, depth=3), (5,)),
    "residual_mlp options": (
        "residual_mlp",
        dict(width=8, depth=3, use_bias=True, norm="layer", activation="tanh", readout="linear"),
        (5,),
    ),
    "cnn": ("cnn", dict(width=4, depth=3), IMAGE),
    "cnn 1-D": ("cnn", dict(width=4, depth=3, kernels=(5,), padding="zero", activation="gelu"), (8, 3)),
    "residual_cnn": ("residual_cnn", dict(width=4, depth=2, norm="batch", dropout=0.3), IMAGE),
    "residual_cnn bottleneck": (
        "residual_cnn",
        dict(width=8, depth=2, kernels=(1, 3, 1), bottleneck=4, padding="zero"),
        IMAGE,
    ),
    "simple_resnet": ("simple_resnet", dict(width=16, depth=6, norm="batch", count="weight_layers"), IMAGE),
    "resnet": ("resnet", dict(width=4, depth=2), IMAGE),
    "resnet bottleneck": ("resnet", dict(width=4, depth=1, stages=(2, 2), bottleneck=True, norm="layer"), IMAGE),
    "vit": ("vit", dict(width=8, depth=3, patch=4), IMAGE),
    "vit mean": ("vit", dict(width=8, depth=2, pool="mean", norm="none", use_bias=False, patch=2), IMAGE),
    "gpt": ("gpt", dict(width=8, depth=3), (6,)),
    "gpt options": (
        "gpt",
        dict(
            width=8,
            depth=2,
            heads=2,
            kv_heads=1,
            positions="rotary",
            mlp="gated",
            activation="silu",
            norm="rms",
            tied=True,
            use_bias=False,
        ),
        (6,),
    ),
}


def init(module, x):
    """All variables, by one program."""
    return jax.jit(module.init)(jax.random.key(0), jnp.asarray(x[:1]), FACTORS)


@functools.cache
def applied(module, train=False, mutable=()):
    """(variables, inputs, factors, dropout key) -> the module applied, as one program."""

    def run(held, x, factors=FACTORS, key=None):
        rngs = {} if key is None else {"dropout": key}
        return module.apply(held, x, factors, train=train, mutable=list(mutable) or False, rngs=rngs)

    return jax.jit(run)


def model(case, **attributes):
    family, defaults, _ = CASES[case]
    return MODELS[family](**{**defaults, "scan": False, **attributes})


def inputs(case, examples=4, dtype=np.float64):
    rng, module, shape = np.random.default_rng(0), model(case), (examples, *CASES[case][2])
    if module.tokens:
        return rng.integers(0, module.outputs, shape)
    return rng.normal(size=shape).astype(dtype)


def variables(case, module):
    """Parameters and statistics in float64, none of them 0 or 1."""
    made = init(module, inputs(case))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda w: np.asarray(w, np.float64) + rng.uniform(0.02, 0.2, w.shape), made)

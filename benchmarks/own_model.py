"""Seconds that `setup` and `check` of a model of your own take, in a process of their own each.

    python -m benchmarks.own_model

The models are the GPTs of experiments/language, of 24 blocks and width 512 from a base of width 64 and 4 blocks; the
check is that of a residual MLP in Equinox' style, written as a pytree, at its default sizes.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import optax

import depthmup as dm

LINES = ("setup of a Linen GPT, scanned", "setup of an NNX GPT, a list of blocks", "check of a residual MLP")


def residual_mlp(width: int, depth: int, key: jax.Array) -> Any:
    keys = jax.random.split(key, depth + 2)
    first, last = (jax.random.normal(k, s) * s[0] ** -0.5 for k, s in ((keys[0], (8, width)), (keys[1], (width, 5))))
    return {"in": first, "blocks": [jax.random.normal(k, (width, width)) * width**-0.5 for k in keys[2:]], "out": last}


def call(params: Any, x: jax.Array) -> jax.Array:
    h = x @ params["in"]
    for weight in params["blocks"]:
        h = h + jax.nn.relu(h) @ weight
    return h @ params["out"]


def loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def measured(line: str) -> float:
    """Seconds, without the import of JAX."""
    from experiments.language import gpt_linen, gpt_nnx

    warnings.simplefilter("ignore", dm.SetupWarning)
    tokens, begin = jnp.zeros((1, 32), jnp.int32), time.perf_counter()
    if line == LINES[2]:
        x, labels = jax.random.normal(jax.random.key(0), (16, 8)), jnp.arange(16) % 5
        m = dm.setup("depth_mup", residual_mlp, x, width=128, depth=4, base=(32, 2), call=call)
        print(m.check(loss, (x, labels)), file=sys.stderr)
    else:
        factory = gpt_linen.GPT if line == LINES[0] else gpt_nnx.GPT
        dm.setup("depth_mup", factory, tokens, width=512, depth=24, base=(64, 4))
    return time.perf_counter() - begin


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measured(sys.argv[1]))
    else:
        for line in LINES:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.own_model", line], check=True, capture_output=True, text=True
            )
            print(f"{line}: {float(done.stdout):.1f} s", flush=True)

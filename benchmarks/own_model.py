"""Seconds and memory that `setup` of a model of your own takes, and seconds of its `check`, each in its own process.

    python -m benchmarks.own_model

A GPT in each framework, its blocks listed or scanned, set up at sizes up to 80 billion parameters, with `fan_in_init`;
then the default checks of the Linen GPT (base 64 x 4) and of a residual MLP.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
import warnings
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx

import depthmup as dm

HEADS, VOCABULARY = 8, 1000
SIZES = ((256, 8), (1024, 24), (8192, 96))


class LinenBlock(nn.Module):
    width: int

    @nn.compact
    def __call__(self, h: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        h = h + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(h))
        return h + nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(h)))), None


class Linen(nn.Module):
    width: int
    depth: int
    scan: bool = False

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        h = nn.Embed(VOCABULARY, self.width)(tokens)
        if self.scan:
            scanned = nn.scan(LinenBlock, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth)
            h, _ = scanned(self.width, name="blocks")(h, None)
        else:
            for i in range(self.depth):
                h, _ = LinenBlock(self.width, name=f"block_{i}")(h)
        return nn.Dense(VOCABULARY, use_bias=False, name="head")(nn.LayerNorm()(h))


class NNXBlock(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs):
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(HEADS, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, h: jax.Array) -> jax.Array:
        h = h + self.attention(self.norms[0](h))
        return h + self.down(nnx.gelu(self.up(self.norms[1](h))))


class NNX(nnx.Module):
    def __init__(self, width: int, depth: int, rngs: nnx.Rngs, scan: bool = False):
        self.embed, self.norm = nnx.Embed(VOCABULARY, width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.head, self.scan = nnx.Linear(width, VOCABULARY, use_bias=False, rngs=rngs), scan
        self.blocks: Any
        if scan:
            make = nnx.vmap(lambda rngs: NNXBlock(width, rngs))
            self.blocks = nnx.split_rngs(splits=depth)(make)(rngs)
        else:
            self.blocks = nnx.List([NNXBlock(width, rngs) for _ in range(depth)])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        h = self.embed(tokens)
        if self.scan:
            h = nnx.scan(lambda block, h: block(h), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(self.blocks, h)
        else:
            for block in self.blocks:
                h = block(h)
        return self.head(self.norm(h))


class EquinoxBlock(eqx.Module):
    norms: list[eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width: int, key: jax.Array):
        keys = jax.random.split(key, 3)
        self.norms = [eqx.nn.LayerNorm(width) for _ in range(2)]
        self.attention = eqx.nn.MultiheadAttention(HEADS, width, key=keys[0])
        self.up, self.down = eqx.nn.Linear(width, 4 * width, key=keys[1]), eqx.nn.Linear(4 * width, width, key=keys[2])

    def __call__(self, h: jax.Array) -> jax.Array:
        y = jax.vmap(self.norms[0])(h)
        h = h + self.attention(y, y, y)
        return h + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.norms[1])(h))))


class Equinox(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: Any
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear
    scan: bool

    def __init__(self, width: int, depth: int, key: jax.Array, scan: bool = False):
        keys = jax.random.split(key, depth + 2)
        self.embed, self.norm = eqx.nn.Embedding(VOCABULARY, width, key=keys[0]), eqx.nn.LayerNorm(width)
        self.head, self.scan = eqx.nn.Linear(width, VOCABULARY, use_bias=False, key=keys[1]), scan
        make = lambda key: EquinoxBlock(width, key)  # noqa: E731
        self.blocks = eqx.filter_vmap(make)(keys[2:]) if scan else [make(key) for key in keys[2:]]

    def __call__(self, tokens: jax.Array) -> jax.Array:
        h = jax.vmap(self.embed)(tokens)
        if self.scan:
            arrays, rest = eqx.partition(self.blocks, eqx.is_array)
            h, _ = jax.lax.scan(lambda h, block: (eqx.combine(block, rest)(h), None), h, arrays)
        else:
            for block in self.blocks:
                h = block(h)
        return jax.vmap(self.head)(jax.vmap(self.norm)(h))


FACTORIES: dict[str, Any] = {
    "Linen": lambda scan: lambda width, depth: Linen(width, depth, scan),
    "NNX": lambda scan: lambda width, depth, rngs: NNX(width, depth, rngs, scan),
    "Equinox": lambda scan: lambda width, depth, key: Equinox(width, depth, key, scan),
}


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


def set_up(framework: str, scan: bool, width: int, depth: int, base: tuple[int, int]) -> dm.Setup:
    tokens = jax.random.randint(jax.random.key(0), (2, 16), 0, VOCABULARY)
    batched: dict[str, Any] = {"call": lambda model, tokens: jax.vmap(model)(tokens)} if framework == "Equinox" else {}
    return dm.setup(
        "depth_mup",
        FACTORIES[framework](scan),
        tokens,
        width=width,
        depth=depth,
        base=base,
        fan_in_init=True,
        **batched,
    )


def measured(kind: str, *arguments: str) -> str:
    warnings.simplefilter("ignore", dm.SetupWarning)
    begin = time.perf_counter()
    if kind == "setup":
        framework, blocks, width, depth = arguments
        set_up(framework, blocks == "scanned", int(width), int(depth), (256, 8))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return f"{time.perf_counter() - begin:.1f} s, {memory:.2f} GB"
    if kind == "GPT":
        m, batch = set_up("Linen", False, 64, 4, (64, 4)), 2 * [jax.random.randint(jax.random.key(1), (4, 16), 0, 1000)]
    else:
        batch = [jax.random.normal(jax.random.key(0), (16, 8)), jnp.arange(16) % 5]
        m = dm.setup("depth_mup", residual_mlp, batch[0], width=128, depth=4, base=(32, 2), call=call)
    begin, cpu = time.perf_counter(), time.process_time()
    report = m.check(loss, batch)
    return f"{time.perf_counter() - begin:.1f} s, {time.process_time() - cpu:.1f} CPU seconds, {report.verdict}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measured(*sys.argv[1:]))
    else:
        runs = [("setup", framework, blocks, *map(str, size)) for framework in FACTORIES for blocks in
                ("listed", "scanned") for size in SIZES]  # fmt: skip
        for run in (*runs, ("GPT",), ("MLP",)):
            command = [sys.executable, "-m", "benchmarks.own_model", *run]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(" ".join(run if run[0] == "setup" else ("check of the", *run)), done.stdout.strip(), flush=True)

"""A training step of a GPT, side by side with nanoGPT's in PyTorch.

    python -m benchmarks.gpt_against_torch            # needs pip install -e '.[bench]'
    python -m benchmarks.gpt_against_torch --width=64 --depth=2 --context=64 --rounds=2

It prints milliseconds of a step (forward, backward, AdamW) of the same network from the same weights on the same
batch, in float32, on all cores: ours with the blocks scanned, unrolled, and scanned with remat that keeps products;
nanoGPT's model with fused attention, one product for queries, keys and values, and fused AdamW (eager). Each is the
fastest of the rounds, in which all alternate; the losses after as many steps must agree. On a busy machine the ratios
mean nothing.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.models import GPT, stack_blocks
from depthmup.models.specs import UNIT
from depthmup.train.task import Task

VOCABULARY, RATE = 65, 1e-3
OPTIONS: dict[str, Any] = {"b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "scanned": {},
    "unrolled": {"scan": False},
    "scanned, remat keeps dots": {"remat": True, "remat_keeps": "dots"},
}
Step = Callable[[], float]


def ours(model: GPT, params: Any, tokens: np.ndarray, labels: np.ndarray) -> tuple[Step, float]:
    """(a step that returns the loss before it, seconds to compile). params: those of unrolled blocks."""
    task = Task(model, tokens.shape[1:], "adamw")
    hyper = task.hyper(dm.parameterization("sp"), RATE, **OPTIONS).arrays()
    start = jax.jit(task.init)(hyper)
    state = {"now": start._replace(params=jax.tree.map(jnp.array, stack_blocks(params, start.params)))}
    begin = time.perf_counter()
    program = jax.jit(task.step, donate_argnums=0).lower(state["now"], (tokens, labels), hyper).compile()
    seconds = time.perf_counter() - begin

    def step() -> float:
        state["now"], metrics = program(state["now"], (tokens, labels), hyper)
        return float(jax.block_until_ready((state["now"], metrics))[1]["loss"])

    return step, seconds


def nano_gpt(model: GPT, params: Any, tokens: np.ndarray, labels: np.ndarray) -> Step:
    """nanoGPT's model and step, from our parameters."""
    import torch
    from torch import nn
    from torch.nn import functional

    width = model.width

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            parts = self.c_attn(self.ln_1(x)).split(width, dim=2)
            q, k, v = (z.unflatten(-1, (model.heads, -1)).transpose(1, 2) for z in parts)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.c_proj(y.transpose(1, 2).flatten(2))
            return x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x))))

    class NanoGPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(model.outputs, width), nn.Embedding(tokens.shape[1], width)
            self.h, self.ln_f = nn.ModuleList(Block() for _ in range(model.depth)), nn.LayerNorm(width, eps=1e-6)

        def forward(self, tokens: Any, labels: Any) -> Any:
            x = self.wte(tokens) + self.wpe.weight
            for block in self.h:
                x = block(x)
            logits = functional.linear(self.ln_f(x), self.wte.weight)
            return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def copy(parameter: Any, *arrays: np.ndarray) -> None:
        parameter.data.copy_(torch.tensor(np.concatenate(arrays)))

    net = NanoGPT()
    copy(net.wte.weight, params["embed"]["embedding"])
    copy(net.wpe.weight, params["positions"])
    copy(net.ln_f.weight, params["final_norm"]["scale"])
    copy(net.ln_f.bias, params["final_norm"]["bias"])
    for i, block in enumerate(net.h):
        p = params[f"block_{i}"]
        three = [p["attention"][name] for name in ("query", "key", "value")]
        copy(block.c_attn.weight, *[part["kernel"].reshape(width, width).T for part in three])
        copy(block.c_attn.bias, *[part["bias"].ravel() for part in three])
        copy(block.c_proj.weight, p["attention"]["out"]["kernel"].reshape(width, width).T)
        copy(block.c_proj.bias, p["attention"]["out"]["bias"])
        for layer, name in ((block.c_fc, "mlp_in"), (block.mlp_proj, "mlp_out")):
            copy(layer.weight, p[name]["kernel"].T)
            copy(layer.bias, p[name]["bias"])
    optimizer = torch.optim.AdamW(net.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    x, y = torch.tensor(tokens).long(), torch.tensor(labels).long()

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = net(x, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"width": 384, "depth": 6, "heads": 6, "context": 256, "batch": 16, "rounds": 6}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    o = parser.parse_args()
    prepare_cpu(1)
    tokens, labels = np.random.default_rng(0).integers(0, VOCABULARY, (2, o.batch, o.context)).astype(np.int32)
    model = GPT(o.width, o.depth, VOCABULARY, heads=o.heads, tied=True)
    steps: dict[str, Step] = {}
    params = model.clone(scan=False).init(jax.random.key(0), tokens[:1], UNIT)["params"]
    for name, options in VARIANTS.items():
        steps[name], seconds = ours(model.clone(**options), params, tokens, labels)
        print(f"{name}: compiled in {seconds:.1f} s", flush=True)
    steps["nanoGPT"] = nano_gpt(model, params, tokens, labels)
    times: dict[str, list[float]] = {name: [] for name in steps}
    losses = {}
    for _ in range(o.rounds + 1):  # the first warms up
        for name, step in steps.items():
            begin = time.perf_counter()
            losses[name] = step()
            times[name].append(1000 * (time.perf_counter() - begin))
    torch_time = min(times["nanoGPT"][1:])
    for name, values in times.items():
        best = min(values[1:])
        print(f"{name:28}{best:8.0f} ms   nanoGPT / this {torch_time / best:.2f}   loss {losses[name]:.5f}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()

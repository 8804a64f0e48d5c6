"""Convolutions and attention, side by side with PyTorch; compile time against depth.

    python benchmarks/vision_against_torch.py        # needs pip install -e '.[bench]'

It prints milliseconds of a forward pass (inference) and of a training step (cross-entropy, backward, SGD update) on 64
images of 32x32x3, in float32, on all cores. Each is the fastest of 6 measurements, which alternate between ours and
PyTorch (eager, channels last for convolutions, fused attention). Both compute the same function from the same weights,
so the losses after these steps must agree.

Then it prints the seconds to trace (with lowering) and to compile the training step of small models, with blocks
unrolled and scanned, without a compilation cache. It takes about three minutes on an idle machine. On a busy machine
the ratios mean nothing: PyTorch's threads wait for each other actively, and lose several times more than JAX's.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.models import Model, ResidualCNN, SimpleResNet, ViT, stack_blocks

BATCH, SIDE, LEARNING_RATE, ROUNDS = 64, 32, 2.0**-7, 6
CORES = os.cpu_count() or 1
VIT = ViT(width=192, depth=12, heads=3, patch=4, scan=False)
CONVOLUTIONS = ResidualCNN(64, 8, kernels=(3,), padding="zero", scan=False)
MODELS: dict[str, Model] = {
    "8 convolutions, 64 channels, zero padding": CONVOLUTIONS,
    "the same, scanned": CONVOLUTIONS.clone(scan=True),
    "8 convolutions, 64 channels, circular": CONVOLUTIONS.clone(padding="circular"),
    "SimpleResNet, 64 to 512 channels, depth 8": SimpleResNet(512, 8, scan=False),
    "SimpleResNet, scanned": SimpleResNet(512, 8),
    "ViT-Ti, patch 4, unrolled": VIT,
    "ViT-Ti, patch 4, scanned": VIT.clone(scan=True),
}
SMALL_CNN = ResidualCNN(16, kernels=(3,), scan=False)
SMALL_VIT = ViT(64, 4, patch=4, scan=False)
COMPILED = {
    "convolutions unrolled, width 16": (SMALL_CNN, (4, 8, 16, 32, 64)),
    "convolutions scanned, width 16": (SMALL_CNN.clone(scan=True), (4, 8, 16, 32, 64)),
    "ViT unrolled, width 64": (SMALL_VIT, (4, 8, 16, 32)),
    "ViT scanned, width 64": (SMALL_VIT.clone(scan=True), (4, 8, 16, 32)),
}
Pass = Callable[[], Any]


def forward_factors(model: Model) -> dm.ForwardFactors:
    return dm.ForwardFactors(model.depth**-0.5, 1.0, 1 / model.head_dim)


def training_step(model: Model) -> Any:
    """The jitted function (parameters, inputs, labels) -> (new parameters, loss)."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        logits = model.apply({"params": params}, x, forward_factors(model))
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(params: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradients), value

    return jax.jit(step, donate_argnums=0)


def jax_functions(model: Model, params: Any, x: np.ndarray, y: np.ndarray) -> tuple[Pass, Pass]:
    """(forward pass, training step that returns the loss)."""
    images, labels = jnp.asarray(x), jnp.asarray(y)
    like = jax.eval_shape(lambda: model.init(jax.random.key(0), images[:1], forward_factors(model))["params"])
    state = {"params": stack_blocks(jax.tree.map(jnp.array, params), like)}
    predict = jax.jit(lambda params: model.apply({"params": params}, images, forward_factors(model)))
    update = training_step(model)

    def step() -> float:
        state["params"], loss = update(state["params"], images, labels)
        return float(jax.block_until_ready((state["params"], loss))[1])

    return lambda: predict(state["params"]).block_until_ready(), step


def torch_parameters(model: Model, params: Any) -> dict[str, Any]:
    """{path: tensor} of parameters with unrolled blocks, in PyTorch's layout. A ViT's queries, keys and values are one
    product."""
    import torch

    p = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        name, array = "/".join(key.key for key in path), np.asarray(leaf)
        if array.ndim == 4:  # a convolution
            p[name] = torch.tensor(array.transpose(3, 2, 0, 1)).contiguous(memory_format=torch.channels_last)
        elif name.endswith("kernel"):
            columns = array.shape[-1] if name.endswith("out/kernel") or array.ndim == 2 else model.width
            p[name] = torch.tensor(array.reshape(-1, columns).T).contiguous()
        else:
            p[name] = torch.tensor(array if name in ("positions", "class_token") else array.reshape(-1))
    for i in range(model.depth if isinstance(model, ViT) else 0):
        for kind in ("kernel", "bias"):
            three = [p.pop(f"block_{i}/attention/{part}/{kind}") for part in ("query", "key", "value")]
            p[f"block_{i}/attention/qkv/{kind}"] = torch.cat(three)
    for tensor in p.values():
        tensor.requires_grad_()
    return p


def torch_functions(model: Model, params: Any, x: np.ndarray, y: np.ndarray) -> tuple[Pass, Pass]:
    """The same functions as `jax_functions` in PyTorch, from parameters with unrolled blocks."""
    import torch
    from torch.nn import functional

    p = torch_parameters(model, params)
    images = torch.tensor(x.transpose(0, 3, 1, 2)).contiguous(memory_format=torch.channels_last)
    labels = torch.tensor(y).long()
    branch, _, attention = forward_factors(model)

    def conv(h: Any, name: str) -> Any:
        if getattr(model, "padding", None) == "zero":
            return functional.conv2d(h, p[f"{name}/kernel"], padding=1)
        return functional.conv2d(functional.pad(h, (1, 1, 1, 1), mode="circular"), p[f"{name}/kernel"])

    def linear(h: Any, name: str) -> Any:
        return functional.linear(h, p[f"{name}/kernel"], p[f"{name}/bias"])

    def layer_norm(h: Any, name: str) -> Any:
        return functional.layer_norm(h, (model.width,), p[f"{name}/scale"], p[f"{name}/bias"], eps=1e-6)

    def residual_cnn() -> Any:
        h = conv(images, "read_in")
        for i in range(model.depth):
            h = torch.add(h, conv(functional.relu(h), f"block_{i}/last"), alpha=branch)
        return functional.linear(functional.relu(h).mean((2, 3)), p["readout/kernel"])

    def simple_resnet() -> Any:
        h = conv(images, "read_in")
        pools = [round(stage * model.depth / 4) for stage in (1, 2, 3)]
        for i in range(model.depth):
            if i in pools:
                h = conv(functional.avg_pool2d(h, 2), f"double_{pools.index(i) + 1}")
            h = torch.add(h, conv(functional.relu(h), f"block_{i}/conv"), alpha=branch)
        return functional.linear(functional.relu(h).permute(0, 2, 3, 1).flatten(1), p["readout/kernel"])

    def vit() -> Any:
        h = functional.conv2d(images, p["embed/kernel"], p["embed/bias"], stride=model.patch).flatten(2).mT
        h = torch.cat([p["class_token"].expand(len(h), 1, -1), h], 1) + p["positions"]
        for i in range(model.depth):
            qkv = linear(layer_norm(h, f"block_{i}/attention_norm"), f"block_{i}/attention/qkv")
            heads = qkv.unflatten(-1, (3, model.heads, -1)).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(*heads, scale=attention).transpose(1, 2).flatten(2)
            h = torch.add(h, linear(mixed, f"block_{i}/attention/out"), alpha=branch)
            hidden = functional.gelu(linear(layer_norm(h, f"block_{i}/mlp_norm"), f"block_{i}/mlp_in"))
            h = torch.add(h, linear(hidden, f"block_{i}/mlp_out"), alpha=branch)
        return linear(layer_norm(h, "final_norm")[:, 0], "readout")

    logits = {ResidualCNN: residual_cnn, SimpleResNet: simple_resnet, ViT: vit}[type(model)]
    optimizer = torch.optim.SGD(p.values(), lr=LEARNING_RATE)

    def step() -> float:
        optimizer.zero_grad()
        loss = functional.cross_entropy(logits(), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return torch.inference_mode()(logits), step


def compare(model: Model) -> tuple[list[float], list[float]]:
    """(milliseconds of [our forward pass, PyTorch's, our training step, PyTorch's], both last losses)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, SIDE, SIDE, 3)).astype(np.float32)
    y = rng.integers(0, 10, BATCH)
    params = model.clone(scan=False).init(jax.random.key(0), x[:1], forward_factors(model))["params"]
    in_jax, in_torch = jax_functions(model, params, x, y), torch_functions(model, params, x, y)
    milliseconds: list[float] = []
    losses: list[float] = []
    for pair in zip(in_jax, in_torch, strict=True):
        seconds: list[list[float]] = [[], []]
        for _ in range(ROUNDS + 1):  # the first is a warm-up
            for times, function in zip(seconds, pair, strict=True):
                start = time.perf_counter()
                losses = [*losses[-1:], function()]
                times.append(time.perf_counter() - start)
        milliseconds += [1000 * min(times[1:]) for times in seconds]
    return milliseconds, losses


def compile_seconds(model: Model) -> tuple[float, float]:
    """(seconds to trace and lower the training step, seconds to compile it)."""
    x, y = jnp.ones((8, 16, 16, 3)), jnp.zeros(8, int)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), x, forward_factors(model))["params"])
    start = time.perf_counter()
    lowered = training_step(model).lower(params, x, y)
    middle = time.perf_counter()
    lowered.compile()
    return middle - start, time.perf_counter() - middle


def main() -> None:
    try:
        import torch
    except ImportError:
        sys.exit("no torch: pip install -e '.[bench]'")
    torch.set_num_threads(CORES)
    jax.config.update("jax_enable_compilation_cache", False)
    print(f"batch {BATCH}, {SIDE}x{SIDE}x3, {CORES} CPU cores; milliseconds, and PyTorch's over ours\n")
    print(f"| {'':41} | {'forward pass':^26} | {'training step':^26} | {'loss after the steps':^20} |")
    print(f"| {'':41} |" + 2 * f" {'ours':>8} {'PyTorch':>8} {'ratio':>8} |" + f" {'ours':>9} {'PyTorch':>10} |")
    print(f"|{'-' * 43}|{'-' * 28}|{'-' * 28}|{'-' * 22}|")
    for name, model in MODELS.items():
        times, losses = compare(model)
        cells = [f" {a:8.1f} {b:8.1f} {b / a:8.2f} " for a, b in (times[:2], times[2:])]
        print(f"| {name:41} |{'|'.join(cells)}| {losses[0]:9.5f} {losses[1]:10.5f} |", flush=True)
    print("\ntraining step, batch 8, 16x16x3; seconds\n")
    print(f"| {'':31} | {'depth':>5} | {'trace':>7} | {'compile':>7} |\n|{'-' * 33}|{'-' * 7}|{'-' * 9}|{'-' * 9}|")
    for name, (model, depths) in COMPILED.items():
        compile_seconds(model.clone(depth=3))  # a warm-up
        for depth in depths:
            trace, compilation = compile_seconds(model.clone(depth=depth))
            print(f"| {name:31} | {depth:5} | {trace:7.2f} | {compilation:7.2f} |", flush=True)


if __name__ == "__main__":
    prepare_cpu(1)
    main()

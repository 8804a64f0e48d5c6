"""Training throughput, side by side with PyTorch: ResNet-18 on CIFAR's shape, ViT-S/16 on ImageNet's, in bfloat16.

    python -m benchmarks.training_against_torch            # on a GPU; needs pip install -e '.[bench]' and jax[cuda]
    python -m benchmarks.training_against_torch --smoke    # tiny, anywhere: that the script runs, no figure

Ours is the training loop as main.py runs it: data in memory on the device, AdamW, metrics every ten steps. PyTorch runs
torch.compile with autocast to bfloat16, channels last for convolutions, fused attention and AdamW, on one batch that
lies on the GPU. The images are random. It prints images per second after warming up, and the share of the device's peak
speed; for both, the operations are the matrix products and convolutions of our step (depthmup/train/flops.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from configs import default
from depthmup.backend import prepare_cpu
from depthmup.data import Batches
from depthmup.data.dataset import Dataset, Split
from depthmup.models import MODELS
from depthmup.settings import from_config
from depthmup.train import BatchOverDevices, Task, TrialLoop, flops
from depthmup.train.chips import chip_of

STEPS, ROUNDS = 50, 3


class Case(NamedTuple):
    family: str
    side: int
    classes: int
    batch: int
    model: dict[str, Any]


CASES = {
    "ResNet-18, 32x32x3": Case("resnet", 32, 10, 512, dict(width=64, depth=2, stages=(1, 1, 1, 1), norm="batch")),
    "ViT-S/16, 224x224x3": Case("vit", 224, 1000, 256, dict(width=384, depth=12, heads=6, patch=16)),
}
SMOKE = {
    "ResNet, 16x16x3": Case("resnet", 16, 10, 8, dict(width=4, depth=1, stages=(1, 1, 1, 1), norm="batch")),
    "ViT, 16x16x3": Case("vit", 16, 10, 8, dict(width=16, depth=2, heads=2, patch=8)),
}


def ours(case: Case, steps: int) -> tuple[float, float]:
    """(images per second, floating-point operations of a step)."""
    rng = np.random.default_rng(0)
    examples = 4 * case.batch
    images = rng.integers(0, 256, (examples, case.side, case.side, 3), dtype=np.uint8)
    split = Split(images, rng.integers(0, case.classes, examples).astype(np.int32))
    few = Split(*(leaf[:256] for leaf in split))
    shape = (case.side, case.side, 3)
    names = tuple(map(str, range(case.classes)))
    dataset = Dataset(split, few, few, np.array(127.0), np.array(60.0), shape, names)
    config = default.get_config(case.family)
    config.model.update(case.model, dtype="bfloat16")
    config.optimizer.name, config.optimizer.learning_rate = "adamw", 1e-3
    settings = from_config(config)
    how = settings.model
    model = MODELS[how.name](width=how.width, depth=how.depth, outputs=case.classes, **how.options)
    task = Task(model, shape, "adamw")
    hyper = task.hyper(settings.parameterization.build(), settings.optimizer.learning_rate)
    loop = TrialLoop(task, Batches(dataset, case.batch), BatchOverDevices(jax.devices()[:1]))
    times: list[float] = []
    loop.run([hyper], (ROUNDS + 1) * steps, 10, lambda step, _: times.append(time.perf_counter()))
    seconds = (times[-1] - times[steps // 10 - 1]) / ROUNDS
    return case.batch * steps / seconds, flops.of_step(task, hyper, case.batch)


def resnet(case: Case) -> Any:
    """The ResNet of He et al. for CIFAR, in PyTorch: basic blocks, 1x1 convolutions where the shape changes."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.branch = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outputs),
            )
            shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
            self.shortcut = nn.Sequential(*shortcut) if (inputs, stride) != (outputs, 1) else nn.Identity()

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.branch(x) + self.shortcut(x))

    width, blocks = case.model["width"], []
    for stage in range(4):
        for block in range(case.model["depth"]):
            first = block == 0
            inputs = width * 2 ** max(0, stage - first)
            blocks.append(Block(inputs, width * 2**stage, 2 if first and stage else 1))
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, case.classes)]
    return nn.Sequential(*stem, *blocks, *head)


def vit(case: Case) -> Any:
    import torch
    from torch import nn

    width, heads, patch = (case.model[name] for name in ("width", "heads", "patch"))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, h: Any) -> Any:
            q, k, v = self.qkv(self.norms[0](h)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            h = h + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return h + self.mlp(self.norms[1](h))

    class ViT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(3, width, patch, patch)
            self.token = nn.Parameter(torch.randn(1, 1, width))
            self.positions = nn.Parameter(torch.randn(1, (case.side // patch) ** 2 + 1, width))
            self.blocks = nn.Sequential(*[Block() for _ in range(case.model["depth"])])
            self.norm, self.readout = nn.LayerNorm(width), nn.Linear(width, case.classes)

        def forward(self, images: Any) -> Any:
            h = self.embed(images).flatten(2).mT
            h = torch.cat([self.token.expand(len(h), 1, -1), h], 1) + self.positions
            return self.readout(self.norm(self.blocks(h))[:, 0])

    return ViT()


def theirs(case: Case, steps: int) -> float:
    """Images per second of PyTorch."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    model = {"resnet": resnet, "vit": vit}[case.family](case).to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=device == "cuda")
    images = torch.randn(case.batch, 3, case.side, case.side, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, case.classes, (case.batch,), device=device)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    step = torch.compile(step) if device == "cuda" else step
    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        for _ in range(steps):
            loss = step()
        float(loss.detach())  # waits for the device
        seconds.append(time.perf_counter() - start)
    return case.batch * steps * ROUNDS / sum(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    smoke = parser.parse_args().smoke
    device = jax.devices()[0]
    if device.platform == "cpu" and not smoke:
        sys.exit("no GPU: on a CPU run benchmarks/vision_against_torch.py, or this with --smoke")
    chip = chip_of(device.device_kind)
    peak = chip.peak if chip else None
    print(f"{device.device_kind}, bfloat16, images per second and share of the peak\n")
    print("| | batch | ours | of peak | PyTorch | of peak | ours / PyTorch |\n|---|---|---|---|---|---|---|")
    for name, case in (SMOKE if smoke else CASES).items():
        steps = 10 if smoke else STEPS
        (rate, operations), other = ours(case, steps), theirs(case, steps)
        shares = [f"{r / case.batch * operations / peak:.0%}" if peak else "-" for r in (rate, other)]
        cells = [str(case.batch), f"{rate:,.0f}", shares[0], f"{other:,.0f}", shares[1], f"{rate / other:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    prepare_cpu(1)
    main()

"""PyTorch's side of `benchmarks.accelerator`: a ResNet, a ViT and a SimpleResNet, and how fast they train."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

Sizes = dict[str, Any]  # the attributes of the model of depthmup with the same name


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    """Basic or bottleneck, with a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, channels: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = channels * (4 if bottleneck else 1)
        kernels = [(inputs, channels, 1, 1), (channels, channels, 3, stride), (channels, outputs, 1, 1)]
        layers: list[nn.Module] = []
        for a, b, size, by in kernels if bottleneck else [(inputs, channels, 3, stride), (channels, outputs, 3, 1)]:
            layers += [nn.Conv2d(a, b, size, by, size // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.branch = nn.Sequential(*layers[:-1])
        shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.shortcut = nn.Sequential(*shortcut) if (inputs, stride) != (outputs, 1) else nn.Identity()

    def forward(self, x: Any) -> Any:
        return nn.functional.relu(self.branch(x) + self.shortcut(x))


def resnet(side: int, classes: int, sizes: Sizes) -> nn.Module:
    """With ImageNet's stem."""
    width, wide = sizes["width"], sizes["bottleneck"]
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, blocks in enumerate(sizes["stages"]):
        for block in range(blocks * sizes["depth"]):
            channels = width * 2**stage
            layers.append(Block(inputs, channels, 2 if stage and not block else 1, wide))
            inputs = channels * (4 if wide else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def vit(side: int, classes: int, sizes: Sizes) -> nn.Module:
    width, heads, patch = sizes["width"], sizes["heads"], sizes["patch"]

    class Transformer(nn.Module):
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
            self.positions = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width))
            self.blocks = nn.Sequential(*[Transformer() for _ in range(sizes["depth"])])
            self.norm, self.readout = nn.LayerNorm(width), nn.Linear(width, classes)

        def forward(self, images: Any) -> Any:
            h = self.embed(images).flatten(2).mT
            h = torch.cat([self.token.expand(len(h), 1, -1), h], 1) + self.positions
            return self.readout(self.norm(self.blocks(h))[:, 0])

    return ViT()


def simple_resnet(side: int, classes: int, sizes: Sizes) -> nn.Module:
    """Four stages, each half as fine and twice as wide as the one before, with residual convolutions."""
    bounds = [round(i * sizes["depth"] / 4) for i in range(5)]

    class SimpleResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            channels = [sizes["width"] // 2**i for i in (3, 2, 1, 0)]
            self.first = nn.Conv2d(3, channels[0], 3, 1, 1, bias=False)
            self.doubling = nn.ModuleList(nn.Conv2d(c, 2 * c, 3, 1, 1, bias=False) for c in channels[:3])
            self.stages = nn.ModuleList(
                nn.ModuleList(nn.Conv2d(c, c, 3, 1, 1, bias=False) for _ in range(bounds[i + 1] - bounds[i]))
                for i, c in enumerate(channels)
            )
            self.readout = nn.Linear(sizes["width"] * (side // 8) ** 2, classes, bias=False)

        def forward(self, images: Any) -> Any:
            h = self.first(images)
            for i, stage in enumerate(self.stages):
                h = self.doubling[i - 1](nn.functional.avg_pool2d(h, 2)) if i else h
                for conv in stage:
                    h = h + conv(nn.functional.relu(h))
            return self.readout(nn.functional.relu(h).flatten(1))

    return SimpleResNet()


MODELS = {"resnet": resnet, "vit": vit, "simple_resnet": simple_resnet}


def seconds_a_step(family: str, side: int, classes: int, batch: int, sizes: Sizes, dtype: str, steps: int) -> float:
    """Of training on one batch that lies on the device, once warm: channels last, autocast, AdamW, torch.compile."""
    on = device()
    torch.set_float32_matmul_precision("high")
    model = MODELS[family](side, classes, sizes).to(on).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=on == "cuda")
    images = torch.randn(batch, 3, side, side, device=on).to(memory_format=torch.channels_last)
    labels = torch.randint(0, classes, (batch,), device=on)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(on, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    run = torch.compile(step) if on == "cuda" else step
    for timed in (False, True):  # the first time warms up
        begin = time.perf_counter()
        for _ in range(steps):
            loss = run()
        float(loss.detach())  # waits for the device
        if timed:
            return (time.perf_counter() - begin) / steps
    raise AssertionError

"""Computes the cases of `tests/golden.py` in PyTorch, shows how far ours are from them, writes tests/golden/*.npz.

    python -m tests.parity        # needs PyTorch: pip install -e '.[bench]'

The networks below are written from the papers in PyTorch's own layers, NCHW, and share no code with depthmup; the
factors b (branch), c (output) and a (attention) are the paper's only additions. The tests compare with the files, so
they need no PyTorch.
"""

import jax
import numpy as np
import torch
import torch.nn.functional as F
from flax.traverse_util import flatten_dict
from torch import nn

from tests import golden

# ---- the networks


class SimpleResNet(nn.Module):
    """Depthwise-transfer paper, Appendix A.1, and what is ours in it: depth 5 is stages of 1, 1, 2 and 1 blocks."""

    def __init__(self, pool, padding_mode, final, b, c):
        super().__init__()

        def conv3x3(inputs, outputs):
            return nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode=padding_mode, bias=False)

        self.pool, self.b, self.c = pool, b, c
        self.first = conv3x3(3, 2)
        widths, blocks = [2, 4, 8, 16], [1, 1, 2, 1]
        self.stages = nn.ModuleList(
            nn.ModuleList(conv3x3(width, width) for _ in range(n)) for width, n in zip(widths, blocks, strict=True)
        )
        self.wider = nn.ModuleList(conv3x3(width, 2 * width) for width in widths[:-1])
        self.last = nn.Linear(16 * final[0] * final[1], golden.OUTPUTS, bias=False)

    def forward(self, x):
        h = self.first(x)
        for i, stage in enumerate(self.stages):
            if i > 0:
                h = self.wider[i - 1](self.pool(h, 2))
            for conv in stage:
                h = h + self.b * conv(F.relu(h))
        return self.c * self.last(F.relu(h).flatten(1))


class BasicBlock(nn.Module):
    """He et al., figure 2 and option B of section 3.3."""

    def __init__(self, inputs, outputs, stride, b):
        super().__init__()
        self.b = b
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x):
        branch = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(self.downsample(x) + self.b * branch)


class ResNet18(nn.Module):
    """He et al., table 1, with 2 channels where it has 64."""

    def __init__(self, b, c):
        super().__init__()
        self.c = c
        self.conv1 = nn.Conv2d(3, 2, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(2)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(2, 2, 1, b), BasicBlock(2, 2, 1, b))
        self.layer2 = nn.Sequential(BasicBlock(2, 4, 2, b), BasicBlock(4, 4, 1, b))
        self.layer3 = nn.Sequential(BasicBlock(4, 8, 2, b), BasicBlock(8, 8, 1, b))
        self.layer4 = nn.Sequential(BasicBlock(8, 16, 2, b), BasicBlock(16, 16, 1, b))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, golden.OUTPUTS)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.avgpool(x).flatten(1)
        return self.c * F.linear(x, self.fc.weight) + self.fc.bias


class Encoder(nn.Module):
    """Dosovitskiy et al., equations 2 and 3, with the factor on both branches and a for 1 / sqrt(head size)."""

    def __init__(self, width, heads, norm, b, a):
        super().__init__()
        self.heads, self.b, self.a = heads, b, a
        self.ln1, self.ln2 = norm(), norm()
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attention(self, x):
        split = [f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)]
        return self.proj(F.scaled_dot_product_attention(*split, scale=self.a).transpose(1, 2).flatten(2))

    def forward(self, z):
        z = z + self.b * self.attention(self.ln1(z))
        return z + self.b * self.mlp(self.ln2(z))


class VisionTransformer(nn.Module):
    """Dosovitskiy et al., section 3.1: width 16, 4 heads, 2 layers, patches of 4x4."""

    def __init__(self, tokens, class_token, layer_norm, b, c, a):
        super().__init__()
        width = 16

        def norm():
            return nn.LayerNorm(width, eps=1e-6) if layer_norm else nn.Identity()

        self.c = c
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        self.positions = nn.Parameter(torch.zeros(tokens + class_token, width))
        self.layers = nn.Sequential(*(Encoder(width, 4, norm, b, a) for _ in range(2)))
        self.ln = norm()
        self.head = nn.Linear(width, golden.OUTPUTS)

    def forward(self, x):
        z = self.patches(x).flatten(2).transpose(1, 2)
        if self.cls is not None:
            z = torch.cat([self.cls.expand(len(z), -1, -1), z], dim=1)
        z = self.ln(self.layers(z + self.positions))
        z = z.mean(dim=1) if self.cls is None else z[:, 0]
        return self.c * F.linear(z, self.head.weight) + self.head.bias


class GPT2(nn.Module):
    """Radford et al. 2019 as nanoGPT writes it, with the factors; llama: rotary positions (as products of complex
    numbers), RMSNorm, SwiGLU, two heads of keys and values, no biases, a readout of its own (Touvron et al. 2023)."""

    def __init__(self, llama, context, b, c, a):
        super().__init__()
        width, hidden, self.llama, self.c = 16, 64, llama, c
        self.wte = nn.Embedding(golden.OUTPUTS, width)
        self.wpe = None if llama else nn.Embedding(context, width)
        norm = (lambda: nn.RMSNorm(width, eps=1e-6)) if llama else (lambda: nn.LayerNorm(width, eps=1e-6))
        self.blocks = nn.ModuleList()
        for _ in range(2):
            block = nn.Module()
            block.b, block.a = b, a
            block.ln1, block.ln2 = norm(), norm()
            keys = width // 2 if llama else width
            block.q, block.k, block.v = (nn.Linear(width, size, bias=not llama) for size in (width, keys, keys))
            block.proj = nn.Linear(width, width, bias=not llama)
            block.fc, block.out = nn.Linear(width, hidden, bias=not llama), nn.Linear(hidden, width, bias=not llama)
            block.gate = nn.Linear(width, hidden, bias=False) if llama else None
            self.blocks.append(block)
        self.lnf = norm()
        self.head = nn.Linear(width, golden.OUTPUTS, bias=False) if llama else None

    def turned(self, x):
        half = x.shape[-1] // 2
        angles = torch.outer(torch.arange(x.shape[-2]).double(), 10000.0 ** (-torch.arange(half).double() / half))
        z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([z.real, z.imag], dim=-1)

    def forward(self, tokens):
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe.weight
        for block in self.blocks:
            y = block.ln1(x)
            q, k, v = (f(y).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (block.q, block.k, block.v))
            if self.llama:
                q, k = self.turned(q), self.turned(k)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=block.a, enable_gqa=self.llama)
            x = x + block.b * block.proj(mixed.transpose(1, 2).flatten(2))
            y = block.fc(block.ln2(x))
            y = F.silu(block.gate(block.ln2(x))) * y if self.llama else F.gelu(y)
            x = x + block.b * block.out(y)
        return self.c * F.linear(self.lnf(x), self.wte.weight if self.head is None else self.head.weight)


# ---- our parameters in them: (our path, their name, our layout -> theirs)


def same(w):
    return w


def conv(w):
    return w.permute(3, 2, 0, 1)  # HWIO -> OIHW


def dense(w):
    return w.T


def split_heads(w):
    return w.flatten(1).T  # (width, heads, head size)


def joined_heads(w):
    return w.flatten(0, 1).T  # (heads, head size, width)


def simple_resnet_names(final):
    def image(w):  # ours is flattened as (height, width, channels), theirs as (channels, height, width)
        return w.unflatten(0, (*final, -1)).permute(3, 2, 0, 1).flatten(1)

    yield "read_in/kernel", "first.weight", conv
    for i in range(3):
        yield f"double_{i + 1}/kernel", f"wider.{i}.weight", conv
    for i, place in enumerate(["0.0", "1.0", "2.0", "2.1", "3.0"]):
        yield f"block_{i}/conv/kernel", f"stages.{place}.weight", conv
    yield "readout/kernel", "last.weight", image


def norm_names(flax_name, torch_name):
    yield f"{flax_name}/scale", f"{torch_name}.weight", same
    yield f"{flax_name}/bias", f"{torch_name}.bias", same


def resnet18_names():
    yield "read_in/kernel", "conv1.weight", conv
    yield from norm_names("read_in_norm", "bn1")
    for i in range(4):
        for j in range(2):
            flax_name, torch_name = f"stage_{i}/block_{j}", f"layer{i + 1}.{j}"
            yield f"{flax_name}/conv_0/kernel", f"{torch_name}.conv1.weight", conv
            yield from norm_names(f"{flax_name}/norm_0", f"{torch_name}.bn1")
            yield f"{flax_name}/conv_1/kernel", f"{torch_name}.conv2.weight", conv
            yield from norm_names(f"{flax_name}/norm_1", f"{torch_name}.bn2")
            if i > 0 and j == 0:
                yield f"{flax_name}/conv_shortcut/kernel", f"{torch_name}.downsample.0.weight", conv
                yield from norm_names(f"{flax_name}/norm_shortcut", f"{torch_name}.downsample.1")
    yield "readout/kernel", "fc.weight", dense
    yield "readout/bias", "fc.bias", same


def vit_names(class_token, layer_norm):
    yield "embed/kernel", "patches.weight", conv
    yield "embed/bias", "patches.bias", same
    yield "positions", "positions", same
    if class_token:
        yield "class_token", "cls", same
    for i in range(2):
        flax_name, torch_name = f"block_{i}", f"layers.{i}"
        for name in ("query", "key", "value"):
            yield f"{flax_name}/attention/{name}/kernel", f"{torch_name}.{name[0]}.weight", split_heads
            yield f"{flax_name}/attention/{name}/bias", f"{torch_name}.{name[0]}.bias", torch.flatten
        yield f"{flax_name}/attention/out/kernel", f"{torch_name}.proj.weight", joined_heads
        yield f"{flax_name}/attention/out/bias", f"{torch_name}.proj.bias", same
        for name, place in (("mlp_in", "mlp.0"), ("mlp_out", "mlp.2")):
            yield f"{flax_name}/{name}/kernel", f"{torch_name}.{place}.weight", dense
            yield f"{flax_name}/{name}/bias", f"{torch_name}.{place}.bias", same
        if layer_norm:
            yield from norm_names(f"{flax_name}/attention_norm", f"{torch_name}.ln1")
            yield from norm_names(f"{flax_name}/mlp_norm", f"{torch_name}.ln2")
    if layer_norm:
        yield from norm_names("final_norm", "ln")
    yield "readout/kernel", "head.weight", dense
    yield "readout/bias", "head.bias", same


def gpt_names(llama):
    kinds = ("kernel",) if llama else ("kernel", "bias")
    theirs = {"kernel": "weight", "bias": "bias"}
    yield "embed/embedding", "wte.weight", same
    if not llama:
        yield "positions", "wpe.weight", same
    norms = [("final_norm", "lnf")]
    for i in range(2):
        flax_name, torch_name = f"block_{i}", f"blocks.{i}"
        norms += [(f"{flax_name}/attention_norm", f"{torch_name}.ln1"), (f"{flax_name}/mlp_norm", f"{torch_name}.ln2")]
        for kind in kinds:
            for name in ("query", "key", "value"):
                layout = split_heads if kind == "kernel" else torch.flatten
                yield f"{flax_name}/attention/{name}/{kind}", f"{torch_name}.{name[0]}.{theirs[kind]}", layout
            layout = joined_heads if kind == "kernel" else same
            yield f"{flax_name}/attention/out/{kind}", f"{torch_name}.proj.{theirs[kind]}", layout
            for name, place in (("mlp_in", "fc"), ("mlp_out", "out"), *[("mlp_gate", "gate")] * llama):
                layout = dense if kind == "kernel" else same
                yield f"{flax_name}/{name}/{kind}", f"{torch_name}.{place}.{theirs[kind]}", layout
    for flax_name, torch_name in norms:
        yield f"{flax_name}/scale", f"{torch_name}.weight", same
        if not llama:
            yield f"{flax_name}/bias", f"{torch_name}.bias", same
    if llama:
        yield "readout/kernel", "head.weight", dense


def peer(name):
    """The PyTorch network of a case, and the names of its parameters."""
    b, c, a = golden.CASES[name].factors
    if name == "simple_resnet":
        return SimpleResNet(F.avg_pool2d, "zeros", (2, 2), b, c), simple_resnet_names((2, 2))
    if name == "simple_resnet_max_circular":
        return SimpleResNet(F.max_pool2d, "circular", (2, 3), b, c), simple_resnet_names((2, 3))
    if name.startswith("resnet18"):
        return ResNet18(b, c), resnet18_names()
    if name.startswith("gpt"):
        return GPT2(name == "gpt_llama", golden.CASES[name].shape[1], b, c, a), gpt_names(name == "gpt_llama")
    if name == "vit":
        return VisionTransformer(4, True, True, b, c, a), vit_names(True, True)
    return VisionTransformer(6, False, False, b, c, a), vit_names(False, False)


def torch_numbers(name):
    """The numbers of a case by PyTorch, under the keys of the files."""
    case = golden.CASES[name]
    variables = golden.variables(case)
    model, names = peer(name)
    model.double().train(case.train)
    names = list(names)

    flat = flatten_dict(variables["params"], sep="/")
    leaves = {path: torch.tensor(array, requires_grad=True) for path, array in flat.items()}
    assert sorted(path for path, _, _ in names) == sorted(leaves)
    assert sorted(place for _, place, _ in names) == sorted(place for place, _ in model.named_parameters())
    state = {place: layout(leaves[path]) for path, place, layout in names}  # so autograd turns gradients back

    old = flatten_dict(variables.get("batch_stats", {}), sep="/")
    buffers = {}  # path of ours -> name of theirs
    for path, place, _ in names:
        if path.endswith("/scale") and old:
            for statistic, suffix in (("mean", "running_mean"), ("var", "running_var")):
                buffers[path.replace("scale", statistic)] = place.replace("weight", suffix)
    assert buffers.keys() == old.keys()
    state |= {place: torch.tensor(old[path]) for path, place in buffers.items()}

    counts = {}  # how many numbers each batch norm averages
    for place, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(lambda _, x, y, place=place: counts.update({place: y[:, 0].numel()}))

    x, y = (torch.tensor(array) for array in golden.inputs(case))
    logits = torch.func.functional_call(model, state, x if case.model.tokens else x.permute(0, 3, 1, 2))
    grads = torch.autograd.grad(F.cross_entropy(logits.flatten(0, -2), y.flatten()), list(leaves.values()))

    new = {}
    for path, place in buffers.items() if case.train else ():
        new[path] = state[place].numpy()
        if path.endswith("/var"):  # PyTorch averages in .1 of the variance over n - 1, Flax of that over n
            n = counts[place.removesuffix(".running_var")]
            new[path] = 0.9 * old[path] + (new[path] - 0.9 * old[path]) * (n - 1) / n
    return golden.keyed(logits.detach(), dict(zip(leaves, grads, strict=True)), new)


def main():
    jax.config.update("jax_enable_x64", True)
    torch.set_num_threads(1)  # the order of sums, so that a second run writes the same files
    golden.FOLDER.mkdir(exist_ok=True)
    print(f"PyTorch {torch.__version__}: largest differences from ours, of the largest entry of the logits or the leaf")
    results = {name: torch_numbers(name) for name in golden.CASES}
    for name, result in results.items():
        by_kind = {"logits": 0.0, "grad": 0.0, "stats": 0.0}
        for key, difference in golden.differences(golden.flax_numbers(name), result).items():
            kind = key.split(":")[0]
            by_kind[kind] = max(by_kind[kind], difference)
        print(f"{name:28}" + "".join(f"{kind:>9} {value:.1e}" for kind, value in by_kind.items()))
    for name, result in results.items():
        path = golden.FOLDER / f"{name}.npz"
        np.savez_compressed(path, **dict(sorted(result.items())))
        print(f"wrote {path.name}, {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()

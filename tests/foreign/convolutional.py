"""Convolutions and mixers of Linen and Equinox."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from tests.foreign.table import Foreign, blocks, ones, trunk

eqx = pytest.importorskip("equinox")

IMAGES = ones(2, 8, 8, 3)
VMAP = {"call": lambda model, x: jax.vmap(model)(x)}


class ConvBlock(eqx.Module):
    norm: eqx.nn.GroupNorm
    conv1: eqx.nn.Conv1d
    conv2: eqx.nn.Conv1d

    def __init__(self, width, key):
        one, two = jax.random.split(key)
        conv = functools.partial(eqx.nn.Conv1d, width, width, 3, padding="SAME", padding_mode="CIRCULAR")
        self.norm, self.conv1, self.conv2 = eqx.nn.GroupNorm(1, width), conv(key=one), conv(key=two)

    def __call__(self, h):
        return h + self.conv2(jax.nn.relu(self.conv1(self.norm(h))))


class ConvNet1d(eqx.Module):
    """A network of fields on a line, as those of PDE emulators: `channels` in, one out."""

    lift: eqx.nn.Conv1d
    layers: list
    project: eqx.nn.Conv1d

    def __init__(self, width, depth, *, key, channels=1):
        keys = jax.random.split(key, depth + 2)
        self.lift = eqx.nn.Conv1d(channels, width, 1, key=keys[0])
        self.layers = [ConvBlock(width, block_key) for block_key in keys[2:]]
        self.project = eqx.nn.Conv1d(width, 1, 1, key=keys[1])

    def __call__(self, x):
        h = self.lift(x)
        for layer in self.layers:
            h = layer(h)
        return self.project(h)


def of_channels(channels):
    return lambda width, depth, key: ConvNet1d(width, depth, key=key, channels=channels)


class ConvNeXt(nn.Module):
    """Depthwise convolutions, LayerScale, layers between the stages that halve the image."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.LayerNorm(name="stem_norm")(nn.Conv(self.width, (2, 2), (2, 2), name="stem")(x))
        for stage in range(2):
            w = self.width << stage
            if stage:
                h = nn.Conv(w, (2, 2), (2, 2), name="downsample_1")(nn.LayerNorm(name="downsample_1_norm")(h))
            for i in range(self.depth):
                layer = functools.partial("stages_{}_{}_{}".format, stage, i)
                y = nn.Conv(w, (3, 3), feature_group_count=w, name=layer("dwconv"))(h)
                y = nn.gelu(nn.Dense(4 * w, name=layer("pwconv1"))(nn.LayerNorm(name=layer("norm"))(y)))
                gamma = self.param(layer("gamma"), nn.initializers.constant(1e-6), (w,))
                h = h + gamma * nn.Dense(w, name=layer("pwconv2"))(y)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h.mean((1, 2))))


class ResNet(nn.Module):
    """Basic blocks with batch norm; the first of a stage projects the shortcut."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x, train):
        norm = functools.partial(nn.BatchNorm, use_running_average=not train)
        conv = functools.partial(nn.Conv, use_bias=False)
        h = nn.relu(norm(name="bn1")(conv(self.width, (3, 3), name="conv1")(x)))
        for stage in range(2):
            for i in range(self.depth):
                w, strides = self.width << stage, (2, 2) if stage and not i else (1, 1)
                layer = functools.partial("layer{}_{}_{}".format, stage + 1, i)
                y = nn.relu(norm(name=layer("bn1"))(conv(w, (3, 3), strides, name=layer("conv1"))(h)))
                y = norm(name=layer("bn2"))(conv(w, (3, 3), name=layer("conv2"))(y))
                if h.shape != y.shape:
                    h = norm(name=layer("downsample_bn"))(conv(w, (1, 1), strides, name=layer("downsample_conv"))(h))
                h = nn.relu(h + y)
        return nn.Dense(10, name="fc")(h.mean((1, 2)))


class PreActivationResNet(nn.Module):
    """Norms in front, layers in one list; the first block of the second stage projects what its norm returns."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Conv(self.width, (3, 3), name="stem")(x)
        for i in range(2 * self.depth):
            layer, w = functools.partial("block_{}_{}".format, i), self.width << (i >= self.depth)
            y = nn.relu(nn.LayerNorm(name=layer("norm1"))(h))
            if h.shape[-1] != w:
                h = nn.Conv(w, (1, 1), use_bias=False, name=layer("shortcut"))(y)
            y = nn.Conv(w, (3, 3), use_bias=False, name=layer("conv1"))(y)
            y = nn.relu(nn.LayerNorm(name=layer("norm2"))(y))
            h = h + nn.Conv(w, (3, 3), use_bias=False, name=layer("conv2"))(y)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h).mean((1, 2)))


class ResizedPositions(nn.Module):
    """A table of positions (1, width, height, width of the grid) that is resized to the image (SAM2)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Conv(self.width, (2, 2), (2, 2), name="stem")(x)
        table = self.param("positions", nn.initializers.normal(1.0), (1, self.width, 2, 2))
        h = h + jax.image.resize(table, (1, self.width, *h.shape[1:3]), "bicubic").transpose(0, 2, 3, 1)
        for i in range(self.depth):
            y = nn.Dense(2 * self.width, name=f"block_{i}_up")(nn.LayerNorm(name=f"block_{i}_norm")(h))
            h = h + nn.Dense(self.width, name=f"block_{i}_down")(nn.gelu(y))
        return nn.Dense(10, name="head")(h.mean((1, 2)))


class MobileNet(nn.Module):
    """Inverted residuals; the first block of a stage changes the width and has no skip connection."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Conv(self.width, (3, 3), name="stem")(x)
        for stage in range(2):
            for i in range(self.depth + 1):
                w, layer = self.width << stage, functools.partial("s{}_b{}_{}".format, stage, i)
                hidden, strides = 2 * h.shape[-1], (2, 2) if stage and not i else (1, 1)
                y = nn.relu(nn.GroupNorm(1, name=layer("norm"))(nn.Conv(hidden, (1, 1), name=layer("expand"))(h)))
                y = nn.relu(nn.Conv(hidden, (3, 3), strides, feature_group_count=hidden, name=layer("dw"))(y))
                y = nn.Conv(w, (1, 1), name=layer("project"))(y)
                h = y if not i else h + y
        return nn.Dense(10, name="head")(h.mean((1, 2)))


class InOneList(nn.Module):
    """Inverted residuals of both stages under one number (EfficientNet): the path of the second stage's first block,
    which has no skip connection, moves with depth."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Conv(self.width, (3, 3), name="stem")(x)
        for i in range(2 * self.depth):
            layer, entry = functools.partial("block_{}_{}".format, i), i == self.depth
            w, hidden = self.width << (i >= self.depth), 2 * h.shape[-1]
            y = nn.relu(nn.GroupNorm(1, name=layer("norm"))(nn.Conv(hidden, (1, 1), name=layer("expand"))(h)))
            y = nn.relu(nn.Conv(hidden, (3, 3), feature_group_count=hidden, name=layer("dw"))(y))
            y = nn.Conv(w, (1, 1), name=layer("project"))(y)
            h = y if entry else h + y
        return nn.Dense(10, name="head")(h.mean((1, 2)))


class DenseNet(nn.Module):
    """Each layer adds channels to those before: no residual addition."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Conv(self.width, (3, 3), name="stem")(x)
        for i in range(self.depth):
            y = nn.relu(nn.GroupNorm(1, name=f"layer_{i}_norm")(h))
            h = jnp.concatenate([h, nn.Conv(self.width, (3, 3), name=f"layer_{i}_conv")(y)], -1)
        return nn.Dense(10, name="head")(h.mean((1, 2)))


class MixerBlock(eqx.Module):
    patch_mixer: eqx.nn.MLP
    hidden_mixer: eqx.nn.MLP
    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm

    def __init__(self, patches, width, key):
        one, two = jax.random.split(key)
        self.patch_mixer = eqx.nn.MLP(patches, patches, 8, depth=1, key=one)
        self.hidden_mixer = eqx.nn.MLP(width, width, 2 * width, depth=1, key=two)
        self.norm1, self.norm2 = (eqx.nn.LayerNorm((width, patches)) for _ in range(2))

    def __call__(self, h):
        h = h + jax.vmap(self.patch_mixer)(self.norm1(h))
        return h + jax.vmap(self.hidden_mixer, 1, 1)(self.norm2(h))


class Mixer(eqx.Module):
    """MLP-Mixer as in Equinox's tutorial, whose norms have a scale for each channel and patch."""

    conv_in: eqx.nn.Conv2d
    blocks: list
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, width, depth, *, key):
        keys = jax.random.split(key, depth + 2)
        self.conv_in = eqx.nn.Conv2d(3, width, 4, stride=4, key=keys[0])
        self.blocks = [MixerBlock(4, width, block_key) for block_key in keys[2:]]
        self.norm, self.head = eqx.nn.LayerNorm((width, 4)), eqx.nn.Linear(width, 10, key=keys[1])

    def __call__(self, image):
        h = self.conv_in(image)
        h = h.reshape(h.shape[0], -1)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h).mean(1))


class WaveNetLayer(nn.Module):
    """Gated convolution; what it adds to the stream, and what it adds to the sum of all layers, out of which the logits
    are computed. together: one convolution gives both."""

    width: int
    together: bool = False

    @nn.compact
    def __call__(self, carry, _=None):
        h, skips = carry
        gate, value = jnp.split(nn.Conv(2 * self.width, (2,), padding="CAUSAL", name="dilated")(h), 2, axis=-1)
        z = jnp.tanh(value) * nn.sigmoid(gate)
        if self.together:
            residual, skip = jnp.split(nn.Dense(2 * self.width, name="out")(z), 2, axis=-1)
        else:
            residual, skip = nn.Dense(self.width, name="res")(z), nn.Dense(self.width, name="skip")(z)
        return (h + residual, skips + skip), skip


class WaveNet(nn.Module):
    """The last layer's output of the stream is not used."""

    width: int
    depth: int
    together: bool = False
    scan: bool = False
    stack: bool = False

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        if self.scan:
            layers = nn.scan(WaveNetLayer, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth)
            (_, skips), stacked = layers(self.width, self.together, name="layers")((h, jnp.zeros_like(h)), None)
        else:
            skips, every = 0.0, []
            for i in range(self.depth):
                (h, skips), skip = WaveNetLayer(self.width, self.together, name=f"layer_{i}")((h, skips))
                every.append(skip)
            stacked = jnp.stack(every)
        skips = stacked.sum(0) if self.stack else skips
        y = nn.relu(nn.Dense(self.width, name="after")(nn.relu(skips)))
        return nn.Dense(10, name="head")(y)


class FeaturePyramid(nn.Module):
    """Three stages of residual blocks, each of half the length; what they give is summed from the top down."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h, stages = nn.Dense(self.width, name="stem")(x), []
        for s in range(3):
            if s:
                h = nn.Conv(self.width * 2**s, (2,), (2,), name=f"down_{s}")(h)
            for i in range(self.depth):
                y = nn.Dense(self.width * 2**s, name=f"stage_{s}_block_{i}_one")(nn.relu(h))
                h = h + nn.Dense(self.width * 2**s, name=f"stage_{s}_block_{i}_two")(nn.relu(y))
            stages.append(nn.Dense(self.width, name=f"lateral_{s}")(h))
        p = levels = stages[-1]
        for stage in stages[-2::-1]:
            p = stage + jnp.repeat(p, 2, axis=1)
            levels = jnp.concatenate([levels, p], axis=1)
        return nn.Dense(6, name="head")(nn.relu(nn.Dense(self.width, name="tower")(levels)))


class GeluBeforeTheHead(nn.Module):
    """Pre-activation blocks without norms; gelu is approximated by x + .04 x^3 inside a tanh."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="stem")(x)
        for i in range(self.depth):
            y = nn.Dense(self.width, name=f"block_{i}_one")(nn.gelu(h))
            h = h + nn.Dense(self.width, name=f"block_{i}_two")(nn.gelu(y))
        return nn.Dense(6, name="head")(nn.gelu(h))


CHANNEL = {"layers/*": "branch/vector", "layers/*/conv?/weight": "branch/hidden"} | trunk(
    lift="input", project="readout"
)
STAGES = blocks("stages_*") | {"stages_*_dwconv/kernel": "branch/input"}
STAGES |= trunk(stem="input", stem_norm="vector", downsample_1="hidden", downsample_1_norm="vector", norm="vector")
RESNET = blocks("layer*") | trunk(conv1="input", bn1="vector", fc="readout")
RESNET |= trunk(layer2_0_downsample_conv="hidden", layer2_0_downsample_bn="vector")
MOBILE = blocks("s?_b*") | {"s?_b*_dw/kernel": "branch/input"}
MOBILE |= {"s?_b0_*": "vector", "s?_b0_*/kernel": "hidden", "s?_b0_dw/kernel": "input"}
MIXER = {"blocks/*": "branch/vector", "*/hidden_mixer/*/weight": "branch/hidden", "*/patch_mixer/*": "branch/fixed",
         "*/patch_mixer/*/bias": "branch/scalar"}  # fmt: skip

WAVENET = blocks("layer*") | trunk(embed="input", after="hidden", head="readout")


def pre_activation(depth):
    entry = {f"block_{depth}_norm1/*": "vector", f"block_{depth}_shortcut/kernel": "hidden"}
    return blocks("block_*") | trunk(stem="input", norm="vector", head="readout") | entry


def in_one_list(depth):
    entry = {"": "vector", "/kernel": "hidden", "dw/kernel": "input"}
    entry = {f"block_{depth}_*{end}": role for end, role in entry.items()}
    return blocks("block_*") | {"block_*_dw/kernel": "branch/input"} | entry | trunk(stem="input", head="readout")


MODELS = {
    "feature_pyramid": Foreign(
        FeaturePyramid, (ones(2, 8, 5),),
        blocks("stage_*") | trunk(stem="input", tower="hidden", head="readout")
        | {"down_*/*": "vector", "down_*/kernel": "hidden", "lateral_*/*": "vector", "lateral_*/kernel": "hidden"},
    ),
    "gelu_before_the_head": Foreign(
        GeluBeforeTheHead, (ones(2, 6, 5),), blocks("block_*") | trunk(stem="input", head="readout")
    ),
    "wavenet": Foreign(WaveNet, (ones(2, 12, 5),), WAVENET),
    "wavenet_together": Foreign(functools.partial(WaveNet, together=True), (ones(2, 12, 5),), WAVENET),
    "wavenet_stacked": Foreign(functools.partial(WaveNet, stack=True), (ones(2, 12, 5),), WAVENET),
    "wavenet_scanned_stacked": Foreign(
        functools.partial(WaveNet, scan=True, stack=True), (ones(2, 12, 5),), WAVENET
    ),
    "wavenet_scanned": Foreign(functools.partial(WaveNet, scan=True), (ones(2, 12, 5),), WAVENET),
    "one_channel": Foreign(ConvNet1d, (ones(2, 1, 12),), CHANNEL, VMAP),
    "three_channels_to_one": Foreign(of_channels(3), (ones(2, 3, 12),), CHANNEL, VMAP),
    "convnext": Foreign(ConvNeXt, (IMAGES,), STAGES | trunk(head="readout")),
    "resnet": Foreign(ResNet, (IMAGES,), RESNET, {"options": {"train": True}}),
    "pre_activation_resnet": Foreign(PreActivationResNet, (IMAGES,), pre_activation),
    "resized_positions": Foreign(
        ResizedPositions, (IMAGES,), blocks("block_*") | trunk(stem="input", head="readout") | {"positions": "input"}
    ),
    "mobilenet": Foreign(MobileNet, (IMAGES,), MOBILE | trunk(stem="input", head="readout")),
    "one_list_of_inverted_residuals": Foreign(InOneList, (IMAGES,), in_one_list),
    "densenet": Foreign(
        DenseNet, (IMAGES,),
        trunk(stem="input", head="readout")
        | {"*_conv/kernel": "hidden", "*_conv/bias": "vector", "*_norm/*": "vector"},
        {"name": "mup"},
    ),
    "mixer": Foreign(
        Mixer, (ones(2, 3, 8, 8),), MIXER | trunk(conv_in="input", norm="vector", head="readout"), VMAP
    ),
}  # fmt: skip

"""Models of several heads, and of one output."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.foreign.table import TOKENS, Foreign, blocks, ones, trunk

STATES = ones(4, 5)


class Torso(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.Dense(2 * self.width, name=f"block_{i}_up")(nn.LayerNorm(name=f"block_{i}_norm")(h))
            h = h + nn.Dense(self.width, name=f"block_{i}_down")(nn.gelu(y))
        return nn.LayerNorm(name="norm")(h)


class EmbeddedHead(nn.Module):
    """ELECTRA and ALBERT: embeddings of fixed size at both ends, and in front of the last ones GELU and a norm."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, tokens):
        table = nn.Embed(20, 8, embedding_init=nn.initializers.normal(1.0), name="table")
        h = Torso(self.width, self.depth, name="torso")(table(tokens))
        return table.attend(nn.LayerNorm(name="head_norm")(nn.gelu(nn.Dense(8, name="head")(h))))


class TwoHeads(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = Torso(self.width, self.depth, name="torso")(x)
        return {"classes": nn.Dense(10, name="cls")(h), "value": nn.Dense(1, name="reg")(h)}


class ActorCritic(nnx.Module):
    """Two heads on one torso; hidden: a layer of its own in the critic."""

    def __init__(self, width, depth, rngs, bias=True, hidden=False):
        linear = functools.partial(nnx.Linear, rngs=rngs)
        self.embed = linear(5, width)
        self.up = nnx.List([linear(width, 2 * width) for _ in range(depth)])
        self.down = nnx.List([linear(2 * width, width) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.critic = linear(width, width) if hidden else None
        self.pi, self.v = linear(width, 3, use_bias=bias), linear(width, 1, use_bias=bias)

    def __call__(self, x):
        h = self.embed(x)
        for up, down in zip(self.up, self.down, strict=True):
            h = h + down(nnx.tanh(up(h)))
        h = self.norm(h)
        return self.pi(h), self.v(h if self.critic is None else nnx.relu(self.critic(h)))[..., 0]


class FixedHead(nn.Module):
    """A head of two layers, with a hidden layer of one size at all widths, as in neural operators and value heads."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.gelu(nn.Dense(16, name="hidden")(Torso(self.width, self.depth, name="torso")(x)))
        return nn.Dense(3, name="head")(h)


class Bottlenecks(nn.Module):
    """A policy on the features, and a value behind a layer of one size at all widths, as in agents for board games."""

    width: int
    depth: int
    policy: int | None = None

    @nn.compact
    def __call__(self, x):
        h = Torso(self.width, self.depth, name="torso")(x)
        moves = h if self.policy is None else nn.relu(nn.Dense(self.policy, name="policy_few")(h))
        few = nn.relu(nn.Dense(8, name="few")(h))
        return nn.Dense(6, name="policy")(moves), nn.Dense(1, name="value")(few)


class PointerGenerator(nn.Module):
    """Words are written or copied: the logits are those of a mixture, which a gate weighs. mixed: or a gate alone."""

    width: int
    depth: int
    mixed: bool = True

    @nn.compact
    def __call__(self, x):
        h = Torso(self.width, self.depth, name="torso")(x)
        logits, gate = nn.Dense(5, name="words")(h), nn.sigmoid(nn.Dense(1, name="gate")(h))
        return jnp.log(gate * nn.softmax(logits) + (1 - gate) * nn.softmax(x)) if self.mixed else gate * logits


class Squeezed(nn.Module):
    """A value, or a click's rate: features weigh each other by way of a few numbers before a head of one output."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = Torso(self.width, self.depth, name="torso")(x)
        few = nn.relu(nn.Dense(8, name="squeeze")(h))
        return nn.Dense(1, name="head")(h * nn.sigmoid(nn.Dense(self.width, name="excite")(few)))


class WideAndDeep(nn.Module):
    """The logits of a linear model, plus those of a network."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = Torso(self.width, self.depth, name="torso")(x)
        return nn.Dense(10, use_bias=False, name="wide")(x) + nn.Dense(10, name="head")(h)


class ScaledLogits(nn.Module):
    """A learned number multiplies the logits."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        logits = nn.Dense(10, name="head")(Torso(self.width, self.depth, name="torso")(x))
        return self.param("scale", nn.initializers.ones, ()) * logits


class MixtureDensity(nn.Module):
    """Log probabilities, means and scales of a mixture."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = Torso(self.width, self.depth, name="torso")(x)
        logits, means, scales = (nn.Dense(4, name=name)(h) for name in ("pi", "mu", "sigma"))
        return jnp.concatenate([nn.log_softmax(logits), means, nn.softplus(scales)], -1)


class Denoiser(nn.Module):
    """A preconditioned denoiser (EDM): the network's part of the output beside the input's."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x, sigma):
        skip, out = 1 / (1 + sigma**2), sigma / jnp.sqrt(1 + sigma**2)
        h = Torso(self.width, self.depth, name="torso")(jnp.concatenate([x * out, jnp.log(sigma) / 4], -1))
        return skip * x + out * nn.Dense(x.shape[-1], name="head")(h)


class NBEATS(nn.Module):
    """Each block takes its backcast away from the stream and adds a forecast to the output."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        forecast = 0.0
        for i in range(self.depth):
            h = nn.relu(nn.Dense(self.width, name=f"block_{i}_one")(x))
            h = nn.relu(nn.Dense(self.width, name=f"block_{i}_two")(h))
            x = x - nn.Dense(x.shape[-1], name=f"block_{i}_backcast")(h)
            forecast = forecast + nn.Dense(4, name=f"block_{i}_forecast")(h)
        return forecast


class LinkPrediction(nn.Module):
    """Products of the features with each other."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = Torso(self.width, self.depth, name="torso")(x)
        return h @ h.T


class OneOutput(nn.Module):
    """A regression: the readout has one column."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1, name="head")(Torso(self.width, self.depth, name="torso")(x))[..., 0]


def both(outputs):
    """A policy's logits and a value, side by side."""
    policy, value = outputs
    return jnp.concatenate([policy, value[..., None]], -1)


def actor_critic(**kinds):
    return lambda width, depth, rngs: ActorCritic(width, depth, rngs, **kinds)


BESIDE = {"output": lambda outputs: jnp.concatenate(jax.tree.leaves(outputs), -1)}
TORSO = blocks("torso/block_*") | {
    "torso/norm/*": "vector",
    "torso/embed/bias": "vector",
    "torso/embed/kernel": "input",
}
ACTOR_CRITIC = blocks("up/*", "down/*") | trunk(embed="input", norm="vector", pi="readout", v="readout")


def dueling(outputs):
    """Q = V + A - mean(A)"""
    advantage, value = outputs
    return value[..., None] + advantage - advantage.mean(-1, keepdims=True)


def unit(z):
    return z / (jnp.linalg.norm(z, axis=-1, keepdims=True) + 1e-8)


class SigLIP(nn.Module):
    """Two towers; the logits are cosines with a learned temperature and bias. joint: the size of the joint space."""

    width: int
    depth: int
    joint: int | None = None

    @nn.compact
    def __call__(self, image, text):
        temperature = self.param("temperature", lambda key: jnp.log(10.0))
        bias = self.param("bias", lambda key: jnp.float32(-10.0))
        projection = functools.partial(nn.Dense, self.joint or self.width // 2, use_bias=False)
        one = unit(projection(name="image_proj")(Torso(self.width, self.depth, name="image")(image)))
        two = unit(projection(name="text_proj")(Torso(self.width, self.depth, name="text")(text)))
        return jnp.exp(temperature) * one @ two.T + bias


class TwoTowers(nn.Module):
    """As in recommenders: the score is the product of what two towers make."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, image, text):
        one = nn.Dense(self.width, name="image_proj")(Torso(self.width, self.depth, name="image")(image))
        return (one * Torso(self.width, self.depth, name="text")(text)).sum(-1, keepdims=True)


class CosineClassifier(nn.Module):
    """As in ArcFace and few-shot learning: features and the weights of each class have norm 1."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = Torso(self.width, self.depth, name="torso")(x)
        classes = self.param("classes", nn.initializers.normal(1.0), (10, self.width))
        return self.param("scale", lambda key: jnp.float32(16.0)) * unit(h) @ unit(classes).T


SIGLIP = {path.replace("torso", tower): role for tower in ("image", "text") for path, role in TORSO.items()}
SIGLIP |= {"temperature": "scalar", "bias": "scalar"}
BOTTLENECKS = TORSO | trunk(few="readout", value="fixed") | {"value/bias": "scalar"}

MODELS = {
    "siglip": Foreign(functools.partial(SigLIP, joint=16), (STATES, STATES), SIGLIP | {"*_proj/kernel": "output"}),
    "siglip_joint_grows": Foreign(
        SigLIP, (STATES, STATES), SIGLIP | {"*_proj/kernel": "hidden"}, queries=("temperature",)
    ),
    "two_towers": Foreign(
        TwoTowers, (STATES, STATES),
        {path: role for path, role in SIGLIP.items() if "/" in path} | trunk(image_proj="hidden"),
    ),
    "cosine_classifier": Foreign(
        CosineClassifier, (STATES,), TORSO | {"classes": "input", "scale": "fixed"}, queries=("scale",)
    ),
    "embedded_head": Foreign(
        EmbeddedHead, (TOKENS,),
        TORSO | {"table/*": "fixed", "head/kernel": "output", "head/bias": "scalar", "head_norm/*": "scalar"},
    ),
    "two_heads": Foreign(TwoHeads, (STATES,), TORSO | trunk(cls="readout", reg="readout"), BESIDE),
    "two_heads_value": Foreign(
        TwoHeads, (STATES,), TORSO | trunk(cls="readout", reg="readout"), BESIDE, loss=lambda logits: logits[..., -1:]
    ),
    "actor_critic": Foreign(ActorCritic, (STATES,), ACTOR_CRITIC, {"output": both}),
    "dueling": Foreign(ActorCritic, (STATES,), ACTOR_CRITIC, {"output": dueling}),
    "actor_critic_without_biases": Foreign(
        actor_critic(bias=False), (STATES,), ACTOR_CRITIC, {"output": both}
    ),
    "critic_with_hidden_layer": Foreign(
        actor_critic(hidden=True), (STATES,), ACTOR_CRITIC | trunk(critic="hidden"), {"output": both}
    ),
    "fixed_head": Foreign(
        FixedHead, (STATES,), TORSO | trunk(hidden="readout", head="fixed") | {"head/bias": "scalar"},
        queries=("head/kernel",),
    ),
    "value_behind_a_bottleneck": Foreign(
        Bottlenecks, (STATES,), BOTTLENECKS | trunk(policy="readout"), BESIDE, queries=("value/*",)
    ),
    "bottlenecks": Foreign(
        functools.partial(Bottlenecks, policy=8), (STATES,),
        BOTTLENECKS | trunk(policy_few="readout", policy="fixed") | {"policy/bias": "scalar"}, BESIDE,
        queries=("policy/kernel", "value/kernel"),
    ),
    "pointer_generator": Foreign(
        PointerGenerator, (STATES,), TORSO | trunk(words="readout", gate="readout"), queries=("gate/bias",)
    ),
    "gated_logits": Foreign(
        functools.partial(PointerGenerator, mixed=False), (STATES,), TORSO | trunk(words="readout", gate="readout"),
    ),
    "squeezed": Foreign(
        Squeezed,
        (STATES,),
        TORSO | trunk(squeeze="output", excite="input", head="readout") | {"squeeze/bias": "fixed"},
        queries=("squeeze/*",),
    ),
    "wide_and_deep": Foreign(WideAndDeep, (STATES,), TORSO | trunk(head="readout") | {"wide/kernel": "fixed"}),
    "scaled_logits": Foreign(
        ScaledLogits, (STATES,), TORSO | trunk(head="readout") | {"scale": "scalar"}, queries=("scale",)
    ),
    "mixture_density": Foreign(MixtureDensity, (STATES,), TORSO | trunk(pi="readout", mu="readout", sigma="readout")),
    "denoiser": Foreign(Denoiser, (STATES, np.full((4, 1), 0.5, np.float32)), TORSO | trunk(head="readout")),
    "n_beats": Foreign(
        NBEATS, (STATES,),
        blocks("block_*") | {"*_one/kernel": "branch/input", "*_backcast/kernel": "branch/output"}
        | {"*_forecast/kernel": "branch/readout", "*cast/bias": "branch/scalar"},
    ),
    "link_prediction": Foreign(LinkPrediction, (STATES,), error=r"logits are homogeneous in no parameters alone"),
    "one_output": Foreign(OneOutput, (STATES,), TORSO | trunk(head="readout")),
}  # fmt: skip

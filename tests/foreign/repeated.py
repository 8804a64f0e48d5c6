"""Towers that are called several times, ensembles, and heads of game-playing networks."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from tests.foreign.table import TOKENS, Foreign, blocks, ones, trunk

eqx = pytest.importorskip("equinox")

BOARDS = ones(8, 5, 5, 6)


class Encoder(nn.Module):
    """A transformer of sentences."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, tokens):
        h = nn.Embed(20, self.width, embedding_init=nn.initializers.normal(1.0), name="embed")(tokens)
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"block_{i}_norm1")(h)
            h = h + nn.MultiHeadDotProductAttention(4, name=f"block_{i}_attention")(y)
            y = nn.Dense(2 * self.width, name=f"block_{i}_up")(nn.LayerNorm(name=f"block_{i}_norm2")(h))
            h = h + nn.Dense(self.width, name=f"block_{i}_down")(nn.gelu(y))
        return nn.LayerNorm(name="norm")(h).mean(1)


class Siamese(nn.Module):
    """Two sentences, one encoder: what the first entails of the second."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, one, other):
        encoder = Encoder(self.width, self.depth, name="encoder")
        u, v = encoder(one), encoder(other)
        return nn.Dense(3, name="head")(jnp.concatenate([u, v, jnp.abs(u - v)], -1))


class Tower(nn.Module):
    depth: int

    @nn.compact
    def __call__(self, h):
        for i in range(self.depth):
            y = nn.relu(nn.LayerNorm(name=f"block_{i}_norm")(h))
            h = h + nn.Dense(h.shape[-1], name=f"block_{i}_linear")(y)
        return h


class Unrolled(nn.Module):
    """MuZero: a learned model of a game, called once for each move, and a policy after each."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, observation, moves):
        policy, dynamics = nn.Dense(6, name="policy"), Tower(self.depth, name="dynamics")
        prediction, norm = Tower(self.depth, name="prediction"), nn.LayerNorm(name="norm")
        of_state, of_move = nn.Dense(self.width, name="of_state"), nn.Dense(self.width, name="of_move")
        state = nn.Dense(self.width, name="embed")(observation)
        logits = [policy(norm(prediction(state)))]
        for move in jnp.unstack(moves, axis=1):
            state = dynamics(of_state(nn.relu(norm(state))) + of_move(move))
            logits.append(policy(norm(prediction(state))))
        return jnp.concatenate(logits, -1)


class Critic(eqx.Module):
    embed: eqx.nn.Linear
    norms: list
    up: list
    down: list
    head: eqx.nn.Linear

    def __init__(self, width, depth, key):
        one, two, *keys = jax.random.split(key, 2 + 2 * depth)
        self.embed, self.head = eqx.nn.Linear(5, width, use_bias=False, key=one), eqx.nn.Linear(width, 1, key=two)
        self.norms = [eqx.nn.LayerNorm(width) for _ in range(depth)]
        self.up = [eqx.nn.Linear(width, 2 * width, key=key) for key in keys[:depth]]
        self.down = [eqx.nn.Linear(2 * width, width, key=key) for key in keys[depth:]]

    def __call__(self, x):
        h = self.embed(x)
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            h = h + down(jax.nn.relu(up(norm(h))))
        return self.head(h)


def ensemble(width, depth, key):
    """Two critics, as of SAC, in one pytree."""
    return eqx.filter_vmap(lambda key: Critic(width, depth, key))(jax.random.split(key))


def call_ensemble(critics, states):
    of_all = eqx.filter_vmap(lambda critic, states: jax.vmap(critic)(states), in_axes=(eqx.if_array(0), None))
    return of_all(critics, states)[..., 0].T


class Board(nn.Module):
    """A convolutional tower with heads of few channels, as of AlphaZero. normed: with a batch norm behind each, and a
    policy beside the value."""

    width: int
    depth: int
    normed: bool = False

    @nn.compact
    def __call__(self, boards, train=True):
        h = nn.Conv(self.width, (3, 3), name="stem")(boards)
        for i in range(self.depth):
            y = nn.relu(nn.LayerNorm(name=f"block_{i}_norm")(h))
            h = h + nn.Conv(self.width, (3, 3), name=f"block_{i}_conv")(y)
        logits = []
        for name, channels, outputs in (("value", 1, 3), ("policy", 2, 20))[: 1 + self.normed]:
            y = nn.Conv(channels, (1, 1), use_bias=False, name=f"{name}_conv")(h)
            if self.normed:
                y = nn.BatchNorm(use_running_average=not train, name=f"{name}_norm")(y)
            logits.append(nn.Dense(outputs, name=name)(nn.relu(y).reshape(len(y), -1)))
        return jnp.concatenate(logits, -1)


BOARD = (
    blocks("block_*")
    | trunk(stem="input")
    | {"value/kernel": "fixed", "value/bias": "scalar", "value_conv/kernel": "readout"}
)
NORMED = {"policy*": "scalar", "value*": "scalar", "*[ye]/kernel": "fixed", "*[ye]_conv/*": "output"}
CRITIC = trunk(embed="input", head="readout") | blocks("up/*", "down/*", matrix="weight") | {"norms/*": "branch/vector"}
MODELS = {
    "siamese": Foreign(
        Siamese,
        (TOKENS, TOKENS[:, ::-1]),
        blocks("encoder/block_*") | {"encoder/norm/*": "vector", "encoder/embed/embedding": "input"}
        | trunk(head="readout"),
        queries=("*/query/*", "*/key/*"),
    ),
    "unrolled": Foreign(
        Unrolled,
        (ones(4, 5), ones(4, 2, 3)),
        blocks("*/block_*")
        | trunk(embed="input", of_move="input", of_state="hidden", norm="vector", policy="readout"),
    ),
    "ensemble": Foreign(ensemble, (ones(4, 5),), CRITIC, {"call": call_ensemble}),
    "equinox_without_bias": Foreign(
        Critic, (ones(4, 5),), CRITIC, {"call": lambda model, x: jax.vmap(model)(x)}
    ),
    "board": Foreign(Board, (BOARDS,), BOARD, queries=("value/kernel",)),
    "board_normed": Foreign(
        lambda width, depth: Board(width, depth, normed=True), (BOARDS,),
        BOARD | NORMED, {"options": {"train": True}},
    ),
}  # fmt: skip

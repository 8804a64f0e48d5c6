"""Recurrences over time inside residual blocks, most of them by a scan."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from tests.foreign.table import TOKENS, Foreign, blocks, ones, trunk

eqx = pytest.importorskip("equinox")

SEQUENCES = ones(2, 6, 5)
embed = functools.partial(nn.Embed, 20, embedding_init=nn.initializers.normal(1.0))
dense = functools.partial(nn.Dense, use_bias=False)


def over_time(step, state, *sequences):
    """`step(state, one of each)` along axis 1."""
    swapped = [sequence.swapaxes(0, 1) for sequence in sequences]
    return jax.lax.scan(lambda state, now: step(state, *now), state, swapped)[1].swapaxes(0, 1)


def shifted(x):
    """The value of the step before."""
    return jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]


class RWKVTimeMix(nn.Module):
    """RWKV-4's, with its running maximum. read_before: y_t is the state before the update, without a bonus."""

    read_before: bool = False

    @nn.compact
    def __call__(self, x):
        w = x.shape[-1]
        mix = {name: self.param(f"time_mix_{name}", nn.initializers.constant(0.5), (w,)) for name in "rkv"}
        r, k, v = (dense(w, name=name)(mix[name] * x + (1 - mix[name]) * shifted(x)) for name in "rkv")
        decay = -jnp.exp(self.param("time_decay", nn.initializers.normal(1.0), (w,)))
        zero = jnp.zeros_like(x[:, 0])
        if self.read_before:
            y = over_time(lambda state, k, v: (jnp.exp(decay) * state + nn.sigmoid(k) * v, state), zero, k, v)
            return dense(w, name="output")(nn.sigmoid(r) * y)
        bonus = self.param("time_first", nn.initializers.normal(1.0), (w,))

        def step(state, k, v):
            a, b, largest = state
            top = jnp.maximum(largest, bonus + k)
            old, new = jnp.exp(largest - top), jnp.exp(bonus + k - top)
            y = (old * a + new * v) / (old * b + new)
            top = jnp.maximum(largest + decay, k)
            old, new = jnp.exp(largest + decay - top), jnp.exp(k - top)
            return (old * a + new * v, old * b + new, top), y

        return dense(w, name="output")(nn.sigmoid(r) * over_time(step, (zero, zero, zero - 1e9), k, v))


class RWKV(nn.Module):
    width: int
    depth: int
    read_before: bool = False

    @nn.compact
    def __call__(self, tokens):
        h = embed(self.width, name="embed")(tokens)
        for i in range(self.depth):
            x = nn.LayerNorm(name=f"blocks_{i}_norm1")(h)
            h = h + RWKVTimeMix(self.read_before, name=f"blocks_{i}_time")(x)
            x = nn.LayerNorm(name=f"blocks_{i}_norm2")(h)
            r, k = dense(self.width, name=f"blocks_{i}_r")(shifted(x)), dense(2 * self.width, name=f"blocks_{i}_k")(x)
            h = h + nn.sigmoid(r) * dense(self.width, name=f"blocks_{i}_v")(nn.relu(k) ** 2)
        return dense(20, name="head")(nn.LayerNorm(name="norm")(h))


class MLSTM(nn.Module):
    """xLSTM's blocks: products of queries and keys with gates instead of a softmax, over the size of their sum."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, tokens):
        h = nn.Embed(20, self.width, embedding_init=nn.initializers.normal(1.0), name="embed")(tokens)
        past = jnp.tril(jnp.ones(2 * tokens.shape[1:], bool))
        for i in range(self.depth):
            x = nn.RMSNorm(name=f"block_{i}_norm")(h)
            q, k, v = (nn.DenseGeneral((4, self.width // 4), name=f"block_{i}_{name}")(x) for name in "qkv")
            enter, forget = (nn.Dense(4, name=f"block_{i}_{name}")(x).swapaxes(1, 2) for name in ("enter", "forget"))
            kept = jnp.cumsum(nn.log_sigmoid(forget), -1)
            decay = jnp.where(past, kept[..., :, None] - kept[..., None, :] + enter[..., None, :], -jnp.inf)
            largest = decay.max(-1, keepdims=True)
            weights = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5 * jnp.exp(decay - largest)
            weights /= jnp.maximum(jnp.abs(weights.sum(-1, keepdims=True)), jnp.exp(-largest))
            y = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
            y = nn.RMSNorm(name=f"block_{i}_heads_norm")(y).reshape(h.shape)
            gate = nn.silu(nn.Dense(self.width, name=f"block_{i}_gate")(x))
            h = h + nn.Dense(self.width, name=f"block_{i}_out")(gate * y)
        return nn.Dense(20, use_bias=False, name="head")(nn.RMSNorm(name="norm")(h))


class Retention(nn.Module):
    """RetNet's blocks: decays instead of a softmax. recurrent: a state in each head, and no norm behind it."""

    width: int
    depth: int
    recurrent: bool = False

    @nn.compact
    def __call__(self, tokens):
        h = nn.Embed(20, self.width, embedding_init=nn.initializers.normal(1.0), name="embed")(tokens)
        steps, decays = jnp.arange(tokens.shape[1]), 1 - 2.0 ** -jnp.arange(2, 6)
        past = jnp.tril(decays[:, None, None] ** jnp.abs(steps[:, None] - steps))
        for i in range(self.depth):
            x = nn.RMSNorm(name=f"block_{i}_norm")(h)
            dense = functools.partial(nn.DenseGeneral, use_bias=False)
            q, k, v = (dense((4, self.width // 4), name=f"block_{i}_{name}")(x) for name in "qkv")
            k *= k.shape[-1] ** -0.5
            if self.recurrent:

                def step(state, q, k, v):
                    state = decays[:, None, None] * state + k[..., None] * v[..., None, :]
                    return state, jnp.einsum("bhd,bhde->bhe", q, state)

                y = over_time(step, jnp.zeros((*q.shape[:1], *q.shape[2:], q.shape[-1])), q, k, v)
            else:
                y = jnp.einsum("bhqk,bkhd->bqhd", jnp.einsum("bqhd,bkhd->bhqk", q, k) * past, v)
                y = nn.RMSNorm(name=f"block_{i}_heads_norm")(y)
            y = y.reshape(h.shape) * nn.silu(dense(self.width, name=f"block_{i}_gate")(x))
            h = h + dense(self.width, name=f"block_{i}_out")(y)
        return nn.Dense(20, use_bias=False, name="head")(nn.RMSNorm(name="norm")(h))


class LinearTransformer(nn.Module):
    """Positive queries and keys whose product is divided by the sum over all keys (Katharopoulos et al., 2020)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, tokens):
        h = nn.Embed(20, self.width, embedding_init=nn.initializers.normal(1.0), name="embed")(tokens)
        for i in range(self.depth):
            x = nn.LayerNorm(name=f"block_{i}_norm")(h)
            q, k, v = (nn.DenseGeneral((4, self.width // 4), name=f"block_{i}_{name}")(x) for name in "qkv")
            q, k = nn.elu(q) + 1, nn.elu(k) + 1
            over = 1 / (jnp.einsum("bqhd,bhd->bqh", q, k.sum(1)) + 1e-6)
            y = jnp.einsum("bqhd,bhde,bqh->bqhe", q, jnp.einsum("bkhd,bkhe->bhde", k, v), over)
            h = h + nn.DenseGeneral(self.width, axis=(-2, -1), name=f"block_{i}_out")(y)
        return nn.Dense(20, use_bias=False, name="head")(nn.LayerNorm(name="norm")(h))


class Recurrent(nn.Module):
    """Residual blocks around a cell of Flax, with a projection or without."""

    width: int
    depth: int
    cell: type = nn.GRUCell
    project: bool = True

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.RNN(self.cell(self.width), name=f"block_{i}_rnn")(nn.LayerNorm(name=f"block_{i}_norm")(h))
            h = h + (nn.Dense(self.width, name=f"block_{i}_out")(y) if self.project else y)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h))


class MinGRU(nn.Module):
    """The gates see the inputs only, so the state is linear in the candidates."""

    width: int
    depth: int
    project: bool = True

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            x = nn.LayerNorm(name=f"block_{i}_norm")(h)
            z = nn.sigmoid(nn.Dense(self.width, name=f"block_{i}_gate")(x))
            candidate = nn.Dense(self.width, name=f"block_{i}_candidate")(x)

            def step(state, z, candidate):
                state = (1 - z) * state + z * candidate
                return state, state

            y = over_time(step, jnp.zeros_like(h[:, 0]), z, candidate)
            h = h + (nn.Dense(self.width, name=f"block_{i}_out")(y) if self.project else y)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h))


class Mamba(nn.Module):
    """Mamba-1: a selective state of each channel; the rank of the time step is fixed."""

    states: int = 4
    rank: int = 3

    @nn.compact
    def __call__(self, h):
        inner = 2 * h.shape[-1]
        x, z = jnp.split(dense(2 * inner, name="in_proj")(nn.RMSNorm(name="norm")(h)), 2, -1)
        x = nn.silu(nn.Conv(inner, (3,), padding="CAUSAL", feature_group_count=inner, name="conv1d")(x))
        ends = (self.rank, self.rank + self.states)
        dt, b, c = jnp.split(dense(self.rank + 2 * self.states, name="x_proj")(x), ends, -1)
        dt = nn.softplus(nn.Dense(inner, name="dt_proj")(dt))
        a = -jnp.exp(self.param("A_log", nn.initializers.normal(1.0), (inner, self.states)))

        def step(state, x, dt, b, c):
            state = state * jnp.exp(dt[..., None] * a) + (dt * x)[..., None] * b[:, None]
            return state, (state * c[:, None]).sum(-1)

        y = over_time(step, jnp.zeros((*x[:, 0].shape, self.states)), x, dt, b, c)
        y = y + self.param("D", nn.initializers.ones, (inner,)) * x
        return h + dense(h.shape[-1], name="out_proj")(y * nn.silu(z))


class Mamba2(nn.Module):
    """One decay for each of a fixed number of heads; gate, inputs, B, C and time steps from one matrix, whose outputs
    do not double with the width."""

    states: int = 4
    heads: int = 4

    @nn.compact
    def __call__(self, h):
        inner, state, heads = 2 * h.shape[-1], self.states, self.heads
        fused = dense(2 * inner + 2 * state + heads, name="in_proj")(nn.RMSNorm(name="norm")(h))
        z, x, b, c, dt = jnp.split(fused, (inner, 2 * inner, 2 * inner + state, 2 * inner + 2 * state), -1)
        log_a, bias, skip = (
            self.param(name, nn.initializers.normal(1.0), (heads,)) for name in ("A_log", "dt_bias", "D")
        )
        x, dt = nn.silu(x).reshape(*x.shape[:2], heads, -1), nn.softplus(dt + bias)

        def step(state, x, dt, decay, b, c):
            state = state * decay[..., None, None] + (dt[..., None] * x)[..., None] * b[:, None, None]
            return state, (state * c[:, None, None]).sum(-1)

        y = over_time(step, jnp.zeros((*x[:, 0].shape, state)), x, dt, jnp.exp(-dt * jnp.exp(log_a)), b, c)
        y = (y + skip[:, None] * x).reshape(*x.shape[:2], inner)
        return h + dense(h.shape[-1], name="out_proj")(nn.RMSNorm(name="gated_norm")(y * nn.silu(z)))


class LanguageModel(nn.Module):
    width: int
    depth: int
    block: type

    @nn.compact
    def __call__(self, tokens):
        h = embed(self.width, name="embed")(tokens)
        for i in range(self.depth):
            h = self.block(name=f"block_{i}")(h)
        return dense(20, name="head")(nn.RMSNorm(name="norm")(h))


class S4D(eqx.Module):
    """One layer: a diagonal state of each channel, and a gated linear unit at its end."""

    norm: eqx.nn.LayerNorm
    Lambda_re: jax.Array
    Lambda_im: jax.Array
    C: jax.Array
    D: jax.Array
    log_step: jax.Array
    out: eqx.nn.Linear

    def __init__(self, width, key, states=4):
        keys = iter(jax.random.split(key, 5))
        self.norm = eqx.nn.LayerNorm(width)
        self.Lambda_re, self.Lambda_im = (jax.random.normal(next(keys), (width, states)) for _ in range(2))
        self.C, self.D = jax.random.normal(next(keys), (width, states)), jnp.ones(width)
        self.log_step = jax.random.normal(next(keys), (width,))
        self.out = eqx.nn.Linear(width, 2 * width, key=next(keys))

    def __call__(self, h):
        x, steps = jax.vmap(self.norm)(h), jnp.arange(len(h))
        poles = (-jnp.exp(self.Lambda_re) + 1j * self.Lambda_im) * jnp.exp(self.log_step)[:, None]
        kernel = (self.C[..., None] * jnp.exp(poles[..., None] * steps)).sum(1).real  # (width, length)
        lags = steps[:, None] - steps
        y = jnp.einsum("wts,sw->tw", jnp.where(lags >= 0, kernel[:, lags], 0), x) + self.D * x
        a, gate = jnp.split(jax.vmap(self.out)(jax.nn.gelu(y)), 2, -1)
        return h + a * jax.nn.sigmoid(gate)


class S4DNet(eqx.Module):
    embed: eqx.nn.Linear
    layers: list
    head: eqx.nn.Linear

    def __init__(self, width, depth, *, key):
        keys = jax.random.split(key, depth + 2)
        self.embed, self.head = eqx.nn.Linear(5, width, key=keys[0]), eqx.nn.Linear(width, 10, key=keys[1])
        self.layers = [S4D(width, key=layer_key) for layer_key in keys[2:]]

    def __call__(self, x):
        h = jax.vmap(self.embed)(x)
        for layer in self.layers:
            h = layer(h)
        return jax.vmap(self.head)(h)


class Listening(nn.Module):
    """A state that attends to a memory in each step."""

    width: int

    @nn.compact
    def __call__(self, carry, x, memory):
        h, context = carry
        values = {"from_x": x, "from_context": context, "from_h": h}
        h = nn.tanh(sum(nn.Dense(self.width, name=name)(value) for name, value in values.items()))
        query, keys = nn.Dense(self.width, name="query")(h), nn.Dense(self.width, name="key")(memory)
        weights = nn.softmax(jnp.einsum("bw,btw->bt", query, keys) * self.width**-0.5)
        context = jnp.einsum("bt,btw->bw", weights, memory)
        return (h, context), h + context


class Decoder(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        memory = nn.Dense(self.width, name="memory")(x)
        scan = functools.partial(nn.scan, variable_broadcast="params", split_rngs={"params": False}, out_axes=1)
        cell = scan(Listening, in_axes=(1, nn.broadcast))(self.width, name="cell")
        zeros = jnp.zeros_like(memory[:, 0])
        _, h = cell((zeros, zeros), x, memory)
        return nn.Dense(10, name="head")(h)


class WorldModel(nn.Module):
    """A state whose logits the next step reads, and a second head (Dreamer)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        state, posterior, prior = (nn.Dense(n, name=name) for n, name in ((self.width, "state"), (8, "posterior"),
                                                                       (8, "prior")))  # fmt: skip
        from_x, from_z = (nn.Dense(self.width, name=name) for name in ("from_x", "from_z"))
        h, z, logits = jnp.zeros((len(x), self.width)), jnp.zeros((len(x), 8)), []
        for t in range(x.shape[1]):
            h = nn.tanh(state(nn.gelu(from_x(x[:, t]) + from_z(z) + h)))
            logits += [posterior(h), prior(nn.gelu(h))]
            z = nn.softmax(logits[-2])
        return jnp.stack(logits, 1)


TOKENS_IN = blocks("block*") | trunk(embed="input", norm="vector", head="readout")
MAMBA = {"*/conv1d/kernel": "branch/input", "*/x_proj/kernel": "branch/output", "*/dt_proj/kernel": "branch/input"}
MAMBA2 = {"*/A_log": "branch/scalar", "*/D": "branch/scalar", "*/dt_bias": "branch/scalar"}
CELLS = TOKENS_IN | blocks("*Cell_*")
SCALE = r"factors\.branch"


class BlockDiagonal(nn.Module):
    """Blocks of 8 x 8, more of them as the width grows, as the gates of RecurrentGemma's RG-LRU may have."""

    @nn.compact
    def __call__(self, x):
        blocks = x.shape[-1] // 8
        w = self.param("w", nn.initializers.normal(8**-0.5), (blocks, 8, 8))
        b = self.param("b", nn.initializers.zeros, (blocks, 8))
        return (jnp.einsum("...hi,hij->...hj", x.reshape(*x.shape[:-1], blocks, 8), w) + b).reshape(x.shape)


class Griffin(nn.Module):
    """h + W y with y_t = a_t y_{t-1} + sqrt(1 - a_t^2) i_t x_t, both gates of block-diagonal matrices."""

    @nn.compact
    def __call__(self, h):
        width = h.shape[-1]
        x = nn.Dense(width, name="linear_x")(nn.RMSNorm(name="norm")(h))
        recurrence, entry = (jax.nn.sigmoid(BlockDiagonal(name=name)(x)) for name in ("a_gate", "input_gate"))
        decay = self.param("a_param", nn.initializers.uniform(1.0), (width,))
        a = jnp.exp(-8.0 * recurrence * nn.softplus(decay))

        def joined(left, right):
            return left[0] * right[0], right[0] * left[1] + right[1]

        _, y = jax.lax.associative_scan(joined, (a, jnp.sqrt(1.001 - a**2) * entry * x), axis=-2)
        return h + nn.Dense(width, name="linear_out")(y)


MODELS = {
    "griffin": Foreign(
        functools.partial(LanguageModel, block=Griffin), (TOKENS,), TOKENS_IN | {"*_gate/w": "branch/vector"}
    ),
    "rwkv4": Foreign(RWKV, (TOKENS,), TOKENS_IN),
    "rwkv_read_before": Foreign(functools.partial(RWKV, read_before=True), (TOKENS,), TOKENS_IN),
    "gru": Foreign(Recurrent, (SEQUENCES,), CELLS),
    "min_gru": Foreign(MinGRU, (SEQUENCES,), TOKENS_IN),
    "min_gru_without_projection": Foreign(functools.partial(MinGRU, project=False), (SEQUENCES,), TOKENS_IN),
    "lstm": Foreign(functools.partial(Recurrent, cell=nn.LSTMCell), (SEQUENCES,), CELLS),
    "attention_in_each_step": Foreign(
        Decoder, (SEQUENCES,),
        {"cell/*": "vector", "cell/*/kernel": "hidden", "cell/from_x/kernel": "input"}
        | trunk(memory="input", head="readout"),
        {"name": "mup", "residual": False}, queries=("cell/query/*", "cell/key/*"),
    ),
    "lstm_without_projection": Foreign(
        functools.partial(Recurrent, cell=nn.LSTMCell, project=False), (SEQUENCES,), error=SCALE
    ),
    "mlstm": Foreign(
        MLSTM, (TOKENS,),
        blocks("block_*") | TOKENS_IN | {"*_enter/*": "branch/scalar", "*_forget/*": "branch/scalar"}
        | {"*_enter/kernel": "branch/output", "*_forget/kernel": "branch/output"},
    ),
    "retention": Foreign(Retention, (TOKENS,), blocks("block_*") | TOKENS_IN),
    "linear_transformer": Foreign(
        LinearTransformer, (TOKENS,), blocks("block_*") | TOKENS_IN, queries=("*_[qk]/*",)
    ),
    # What a block adds is of size head_dim^-1/2 at the first step, since its products are.
    "linear_attention": Foreign(
        functools.partial(Retention, recurrent=True), (TOKENS,), blocks("block_*") | TOKENS_IN,
        queries=("block_*", "embed/*"),
    ),
    "mamba": Foreign(functools.partial(LanguageModel, block=Mamba), (TOKENS,), TOKENS_IN | MAMBA),
    "mamba2": Foreign(functools.partial(LanguageModel, block=Mamba2), (TOKENS,), TOKENS_IN | MAMBA2),
    "s4d_with_glu": Foreign(S4DNet, (SEQUENCES,), options={"call": lambda model, x: jax.vmap(model)(x)}, error=SCALE),
}  # fmt: skip

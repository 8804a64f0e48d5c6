"""The language model against its equations written out in NumPy, and against published numbers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import depthmup as dm
from depthmup.models import GPT, states
from depthmup.models.attention import rotated
from tests.families import CASES, FACTORS, applied, init, inputs, model, variables

VOCABULARY = 10


def layer_norm(x, p):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def rms_norm(x, p):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"]


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gpt2(params, tokens, factors):
    """Radford et al. 2019 in the structure of its published code (one matrix for queries, keys and values, tied
    readout), but for its approximation of GELU by a tanh."""
    branch, output, attention = factors
    length = tokens.shape[1]
    x = params["embed"]["embedding"][tokens] + params["positions"][:length]
    width = x.shape[-1]
    for layer in range(sum(name.startswith("block_") for name in params)):
        p = params[f"block_{layer}"]
        parts = [p["attention"][name] for name in ("query", "key", "value")]
        heads, size = parts[0]["bias"].shape
        c_attn = np.concatenate([part["kernel"].reshape(width, width) for part in parts], axis=1)
        bias = np.concatenate([part["bias"].ravel() for part in parts])
        qkv = layer_norm(x, p["attention_norm"]) @ c_attn + bias
        q, k, v = (z.reshape(*z.shape[:2], heads, size).swapaxes(1, 2) for z in np.split(qkv, 3, axis=-1))
        scores = attention * q @ k.swapaxes(-1, -2)
        scores = np.where(np.tril(np.ones((length, length))), scores, -1e10)
        a = (softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape)
        x = x + branch * (a @ p["attention"]["out"]["kernel"].reshape(width, width) + p["attention"]["out"]["bias"])
        z = layer_norm(x, p["mlp_norm"]) @ p["mlp_in"]["kernel"] + p["mlp_in"]["bias"]
        z = z * 0.5 * (1 + erf(z / np.sqrt(2)))
        x = x + branch * (z @ p["mlp_out"]["kernel"] + p["mlp_out"]["bias"])
    return output * layer_norm(x, params["final_norm"]) @ params["embed"]["embedding"].T


def llama(params, tokens, factors):
    """Touvron et al. 2023: RMSNorm, rotary positions as products of complex numbers, SwiGLU, no biases."""
    branch, output, attention = factors
    length = tokens.shape[1]
    x = params["embed"]["embedding"][tokens]
    for layer in range(sum(name.startswith("block_") for name in params)):
        p = params[f"block_{layer}"]
        y = rms_norm(x, p["attention_norm"])
        q, k, v = (np.einsum("btn,nhd->bhtd", y, p["attention"][name]["kernel"]) for name in ("query", "key", "value"))
        half = q.shape[-1] // 2
        turn = np.exp(1j * np.outer(np.arange(length), 10000.0 ** (-np.arange(half) / half)))
        q, k = ((z[..., :half] + 1j * z[..., half:]) * turn for z in (q, k))
        scores = attention * (q @ k.conj().swapaxes(-1, -2)).real
        scores = np.where(np.tril(np.ones((length, length))), scores, -np.inf)
        a = np.einsum("bhts,bhsd->bthd", softmax(scores), v)
        x = x + branch * np.einsum("bthd,hdn->btn", a, p["attention"]["out"]["kernel"])
        y = rms_norm(x, p["mlp_norm"])
        gate = y @ p["mlp_gate"]["kernel"]
        x = x + branch * (gate / (1 + np.exp(-gate)) * (y @ p["mlp_in"]["kernel"])) @ p["mlp_out"]["kernel"]
    return output * rms_norm(x, params["final_norm"]) @ params["readout"]["kernel"]


@pytest.mark.parametrize(
    ("equation", "module"),
    [
        (gpt2, GPT(8, 2, heads=2, tied=True, scan=False)),
        (
            llama,
            GPT(
                8,
                2,
                heads=2,
                positions="rotary",
                mlp="gated",
                activation="silu",
                norm="rms",
                use_bias=False,
                scan=False,
            ),
        ),
    ],
)
@pytest.mark.parametrize("factors", [dm.ForwardFactors(1.0, 1.0, 0.5), FACTORS])
def test_is_the_published_network(equation, module, factors, x64):
    tokens = inputs("gpt")
    made = init(module, tokens)["params"]
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda w: np.asarray(w, np.float64) + rng.normal(0, 0.3, w.shape), made)
    expected = equation(params, tokens, factors)
    logits = applied(module)({"params": params}, tokens, factors)
    assert logits.dtype == np.float64
    np.testing.assert_allclose(logits, expected, rtol=1e-10, atol=1e-10)


def parameters(module, context):
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.ones((1, context), jnp.int32), FACTORS)["params"]
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_parameters_of_gpt2():
    """The published numbers of the smallest and the largest."""
    gpt2 = {"outputs": 50257, "tied": True}
    assert parameters(GPT(768, 12, heads=12, **gpt2), 1024) == 124_439_808
    assert parameters(GPT(1600, 48, heads=25, **gpt2), 1024) == 1_557_611_200


def test_parameters_by_hand():
    """Of Llama 7B, whose MLP has 11,008 hidden units where 3 times the width are here: 4 N^2 of attention, 9 N^2 of the
    gated MLP and two norms in each block; a norm; embedding and readout. What tying saves, what positions cost."""
    module = GPT(4096, 32, 32_000, positions="rotary", mlp="gated", mlp_ratio=3, norm="rms", use_bias=False)
    blocks = 32 * (4 * 4096**2 + 3 * 4096 * 3 * 4096 + 2 * 4096)
    assert parameters(module, 8) == 2 * 32_000 * 4096 + blocks + 4096
    tied = dataclasses.replace(module, tied=True)
    assert parameters(module, 8) - parameters(tied, 8) == 32_000 * 4096
    learned = dataclasses.replace(module, positions="learned")
    assert parameters(learned, 8) - parameters(module, 8) == 8 * 4096


@pytest.mark.parametrize("case", ["gpt", "gpt options"])
@pytest.mark.parametrize("scan", [True, False])
def test_no_logit_depends_on_a_later_token(case, scan):
    """Exactly; and each later one does."""
    module, tokens = model(case, scan=scan), inputs(case)
    held = init(module, tokens)
    rng = np.random.default_rng(1)  # queries and tied logits of their own size
    held = jax.tree.map(lambda w: w + rng.normal(0, 1, w.shape).astype(np.float32), held)
    logits = applied(module)(held, tokens)
    for position in range(tokens.shape[1]):
        other = tokens.copy()
        other[:, position] = (other[:, position] + 1) % VOCABULARY
        changed = applied(module)(held, other)
        np.testing.assert_array_equal(changed[:, :position], logits[:, :position])
        assert np.abs(changed - logits)[:, position:].max(-1).min() > 1e-5


def test_rotary_products_depend_on_the_distance_alone(x64):
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 16))
    length = 40
    q, k = (np.asarray(rotated(jnp.broadcast_to(z, (1, length, 1, 16))))[0, :, 0] for z in (q, k))
    scores = q @ k.T
    np.testing.assert_allclose(scores[1:, 1:], scores[:-1, :-1], atol=1e-12)
    assert np.ptp(scores[0]) > 1  # and on the distance they do depend
    np.testing.assert_allclose(np.linalg.norm(q, axis=-1), np.linalg.norm(q[0]), rtol=1e-12)


def test_rotary_positions_in_single_precision():
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 16)).astype(np.float32)
    q, k = (np.asarray(rotated(jnp.broadcast_to(z, (1, 64, 1, 16))))[0, :, 0] for z in (q, k))
    scores = q @ k.T
    np.testing.assert_allclose(scores[1:, 1:], scores[:-1, :-1], atol=1e-5 * np.abs(scores).max())


def test_a_tied_embedding_is_read_in_and_read_out(x64):
    """Its gradient is the sum of both: of an untied model with the same matrices."""
    tied, untied = (model("gpt options", tied=tied) for tied in (True, False))
    tokens, held = inputs("gpt options"), variables("gpt options", tied)
    assert "readout" not in held["params"]
    both = {**held["params"], "readout": {"kernel": held["params"]["embed"]["embedding"].T}}

    @functools.partial(jax.jit, static_argnums=1)
    @jax.grad
    def gradient(params, module):
        return jnp.sin(module.apply({"params": params}, tokens, FACTORS)).sum()

    one, two = gradient(held["params"], tied), gradient(both, untied)
    np.testing.assert_allclose(
        one["embed"]["embedding"], two["embed"]["embedding"] + two["readout"]["kernel"].T, rtol=1e-9
    )


def test_what_remat_keeps():
    """Numbers are the same to rounding; the memory of a gradient is least where nothing is kept."""
    tokens = np.arange(256).reshape(4, 64) % VOCABULARY
    module = GPT(32, 4, VOCABULARY, heads=4)
    params = init(module, tokens)["params"]
    params = jax.tree.map(lambda w: w + 0.1 * np.cos(np.arange(w.size, dtype="f")).reshape(w.shape), params)
    results, memory = {}, {}
    for name, options in {
        "all": {},
        "dots": {"remat": True, "remat_keeps": "dots"},
        "nothing": {"remat": True},
    }.items():
        run = module.clone(**options)
        loss = lambda params, run=run: jnp.sin(run.apply({"params": params}, tokens, FACTORS)).mean()  # noqa: E731
        program = jax.jit(jax.value_and_grad(loss)).lower(params).compile()
        results[name], memory[name] = program(params), program.memory_analysis().temp_size_in_bytes
    for other in ("dots", "nothing"):
        near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # noqa: E731
        jax.tree.map(near, results[other], results["all"])
    assert memory["nothing"] < 0.8 * memory["dots"] < 0.8 * 0.8 * memory["all"]


def test_states_and_features():
    """h^0 is embedding and positions; "hidden" is the last state, before the norm."""
    module, tokens = model("gpt"), inputs("gpt")
    held = init(module, tokens)
    _, sown = applied(module, mutable=("stream", "features"))(held, tokens)
    params = held["params"]
    expected = params["embed"]["embedding"][tokens] + params["positions"]
    np.testing.assert_allclose(states(sown["stream"])[0], expected, rtol=1e-6)
    assert sown["features"]["hidden"].shape == (*tokens.shape, CASES["gpt"][1]["width"])

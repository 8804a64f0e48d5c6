"""A check and a sweep measure what they say, or name what they cannot measure: precision, rules of derivatives, NaN."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import depthmup as dm
from depthmup.data.batch_checks import check_loss, is_odd, not_finite, too_large
from depthmup.measure.float32 import in_float32, widened
from depthmup.train.workdir import WorkdirError
from tests.test_coordinate_check import matrix_probe

X = np.random.default_rng(0).normal(size=(16, 5)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, 16)


def loss(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.custom_vjp
def straight(w):
    return jnp.round(w * 8) / 8


straight.defvjp(lambda w: (straight(w), None), lambda _, g: (g,))


@jax.custom_vjp
def scaled_dot(h, w):
    return h @ w


scaled_dot.defvjp(lambda h, w: (h @ w, (h, w)), lambda kept, g: (3 * g @ kept[1].T, kept[0].T @ g))


def by_stop_gradient(w):
    return w + jax.lax.stop_gradient(jnp.round(w * 8) / 8 - w)


class Net(nn.Module):
    width: int
    depth: int
    dtype: object = None
    quantized: object = staticmethod(lambda w: w)
    dot: object = staticmethod(jnp.matmul)

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="first", dtype=self.dtype)(x)
        for i in range(self.depth):
            y = nn.silu(nn.LayerNorm(name=f"norm_{i}", dtype=self.dtype)(h))
            w = self.param(f"up_{i}", nn.initializers.lecun_normal(), (self.width, self.width))
            y = nn.Dense(self.width, name=f"down_{i}", use_bias=False, dtype=self.dtype)(
                y @ self.quantized(w).astype(y.dtype)
            )
            h = h + y
        head = self.param("head", nn.initializers.lecun_normal(), (self.width, 4))
        return self.dot(h.astype(jnp.float32), head)


def setup(**options):
    return dm.setup("depth_mup", functools.partial(Net, **options), X, width=8, depth=1, base=(8, 1), fan_in_init=False)


def stepped(m, optimizer="sgd", rate=1.0):
    """(parameters before, after one step of a check's training, what it looks at)"""
    probe = m.probe(loss, (X, Y), optimizer, rate)
    hyper = probe.hyper("all", 0)
    start = probe.init(hyper)
    (after, *_), seen = jax.jit(probe.step)(start, probe.batch, hyper)
    return start[0], after, seen


def close(one, other, rtol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6), one, other)


@pytest.mark.parametrize("low", [jnp.bfloat16, jnp.float16])
def test_a_check_computes_in_float32(low):
    plain, other = stepped(setup()), stepped(setup(dtype=low))
    close(plain, other)
    half = jax.grad(lambda p: loss(Net(8, 1, low).apply({"params": p}, X), Y))(other[0])
    assert np.abs(half["norm_0"]["scale"] - jax.grad(lambda p: loss(Net(8, 1).apply({"params": p}, X), Y))(other[0])[
        "norm_0"
    ]["scale"]).max() > 1e-5  # fmt: skip


def test_programs_in_float32():
    """Scans, branches, loops, scatters and bits, of arrays of lower precision."""
    low = jnp.asarray([0.1, 0.2, 0.3], jnp.bfloat16)

    def function(x, table):
        def body(carry, y):
            return carry * jnp.bfloat16(1.1) + y, carry

        carry, stacked = jax.lax.scan(body, x[0], x)
        chosen = jax.lax.cond(carry > 0, lambda v: v * v, lambda v: v, carry)
        _, looped = jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * jnp.bfloat16(1.3)), (0, chosen))
        rows = jax.grad(lambda t: (t[jnp.array([0, 0, 1])] ** 2).sum())(table)
        bits = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, jnp.uint16), jnp.bfloat16)
        return stacked, looped, rows.sum(), bits, jax.nn.silu(x).astype(jnp.float32)

    wide = in_float32(function, low, low)(widened(low), widened(low))
    x = np.asarray(low, np.float32)
    exact = functools.reduce(lambda carry, y: carry * np.float32(jnp.bfloat16(1.1)) + y, x, x[0])
    factor = np.float32(jnp.bfloat16(1.3))
    np.testing.assert_allclose(wide[1], exact**2 * factor**3, rtol=1e-6)
    np.testing.assert_allclose(wide[2], 4 * x[0] + 2 * x[1], rtol=1e-6)
    np.testing.assert_array_equal(wide[3], x)
    np.testing.assert_allclose(wide[4], x / (1 + np.exp(-x)), rtol=1e-6)
    assert {leaf.dtype for leaf in jax.tree.leaves(wide)} == {np.dtype("float32")}
    plain = lambda x: x * 2  # noqa: E731
    assert in_float32(plain, np.float32(1)) is plain


@pytest.mark.parametrize(
    ("options", "same"),
    [({"quantized": straight}, {"quantized": by_stop_gradient}), ({"dot": scaled_dot}, None)],
    ids=["inside", "the readout"],
)
def test_a_check_keeps_rules_of_derivatives(options, same):
    before, after, seen = stepped(setup(**options))
    if same:
        close((before, after, seen), stepped(setup(**same)))
    else:
        plain = stepped(setup())
        close(seen["hidden"], plain[2]["hidden"])
        close(after["up_0"] - before["up_0"], 3 * (plain[1]["up_0"] - plain[0]["up_0"]), rtol=1e-3)
    assert jnp.abs(after["up_0"] - before["up_0"]).max() > 1e-3


@pytest.mark.filterwarnings("ignore:depth .* over width")
def test_maximal_update_without_forward_mode():
    rates = [setup(quantized=q).maximal_update(loss, (X, Y), seeds=2).per_seed for q in (straight, by_stop_gradient)]
    np.testing.assert_allclose(*rates, rtol=1e-4)


def masked(logits, labels):
    return (optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0)) * (labels >= 0)).mean()


def one_hot(logits, labels):
    return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(labels, 4)).sum(-1).mean()


def with_label(label):
    return np.where(np.arange(16) == 3, label, Y)


WRONG = {
    "from the end": (loss, with_label(-1), "the label -1 is none of the classes 0 to 3, and the loss takes it for one"),
    "beyond": (loss, with_label(99), "the label 99 is none of the classes 0 to 3"),
    "NaN": (lambda a, b: loss(a, b) * jnp.nan, Y, "the loss of finite logits is nan; the targets are finite"),
    "NaN in targets": (
        lambda a, b: ((a - b) ** 2).mean(),
        np.where(np.arange(64).reshape(16, 4) == 9, np.nan, 0),
        "the loss of finite logits is nan; targets has nan in example 2",
    ),
    "constant": (lambda a, b: jnp.float32(1), Y, "the loss does not depend on the logits"),
    "float": (lambda a, b: float(a.mean()), Y, "cannot be compiled, since it asks for the value of an array"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_loss_without_a_gradient(what):
    function, targets, message = WRONG[what]
    with pytest.raises(ValueError, match=message):
        check_loss(function, jax.ShapeDtypeStruct((16, 4), jnp.float32), targets)


@pytest.mark.parametrize(("function", "label"), [(masked, -1), (one_hot, 255)])
def test_labels_that_a_loss_leaves_out(function, label):
    check_loss(function, jax.ShapeDtypeStruct((16, 4), jnp.float32), with_label(label))


def test_odd_batches():
    assert not is_odd((X, Y), (16, 4))
    assert is_odd((X, with_label(4)), (16, 4))
    assert too_large((X, Y + 2**40)).startswith("targets has integers from 1099511627776 to")
    assert not_finite(({"a": X, "b": np.full((16, 2), np.inf)}, Y)) == "inputs[0]['b'] has inf in example 0"


def swept(batches, optimizer="sgd", **options):
    rates = [2.0**-i for i in range(4, 9)]
    sizes = {"widths": (), "depths": (1,), "seeds": 1, "steps": 20, "per_octave": 1, "progress": False}
    return setup().sweep(loss, batches, optimizer=optimizer, learning_rates=rates, **sizes | options)


def other_size(step):
    return (X, Y) if step == 12 else (X[:8], Y[:8])


def nan_at(step, where=jnp.where):
    return where(step == 12, np.nan, 1) * X[:8], Y[:8]  # a step that nobody looks at beforehand


SWEPT = {
    "labels": ({"batches": (X, with_label(-1)), "batch_size": 8}, "the first batch: the label -1 is none"),
    "NaN": ({"batches": (np.where(X == X[9, 2], np.nan, X), Y), "batch_size": 8}, r"inputs\[0\] has nan in example"),
    "held out": (
        {"batches": (X, Y), "batch_size": 8, "evaluate": (np.where(X == X[9, 2], np.nan, X), Y)},
        r"the held-out data: inputs\[0\] has nan in example",
    ),
    "sizes": ({"batches": other_size}, r"that of step 12 has \[\(16, 5\), \(16,\)\]"),
    "at a step": (
        {"batches": functools.partial(nan_at, where=np.where)},
        r"the batch of step 12: inputs\[0\] has nan in example 0, and all 5 trials",
    ),
    "at a step on the device": ({"batches": nan_at}, "the batch of step 12: inputs"),
}


@pytest.mark.parametrize("what", SWEPT)
def test_a_sweep_names_the_batch(what):
    options, message = SWEPT[what]
    with pytest.raises(ValueError, match=message):
        swept(**options)


def test_a_check_names_the_batch():
    with pytest.raises(ValueError, match=r"inputs\[0\] has nan in example 9, and the logits are not finite"):
        setup().check(loss, (np.where(X == X[9, 2], np.nan, X), Y))
    with pytest.raises(ValueError, match="learning_rate must be positive"):
        setup().check(loss, (X, Y), learning_rate=0)


P = dm.parameterization("depth_mup")
ONE = {"depths": (1, 2), "width": 8, "seeds": 2, "max_seeds": 4, "steps": (1,)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda params, state: state[0], "training all parameters changes nothing"),
        (lambda params, state: jax.tree.map(lambda w: w * jnp.nan, params), "the hidden are not finite at the start"),
    ],
)
def test_what_cannot_be_measured(changed, message):
    """It is said after the first training, before other shapes are compiled."""
    compiled = []

    def probe_at(width, depth):
        probe = matrix_probe(P, width, depth)

        def step(state, batch, hyper):
            compiled.append(depth)
            (params, kept), _ = probe.step(state, batch, hyper)
            return (changed(params, state), kept), None

        return probe._replace(step=step)

    with pytest.raises(ValueError, match=f"nothing can be measured: at width 8, depth 1 .*{message}|{message}"):
        dm.coordinate_check(probe_at, **ONE)


def test_a_group_that_never_moves_is_undecided():
    """And one that does not move in the first step is judged by the others."""

    def probe_at(width, depth):
        probe = matrix_probe(P, width, depth)

        def step(state, batch, hyper):
            (params, kept), _ = probe.step(state, batch, hyper)
            return ({**params, "hidden": state[0]["hidden"]}, kept), None

        return probe._replace(step=step)

    report = dm.coordinate_check(probe_at, **ONE)
    assert {s.answer for s in report.slopes if s.group == "branch/hidden"} == {"undecided"}
    assert max(s.changes.shape[1] for s in report.slopes if s.group == "branch/hidden") == 2
    assert "not measured, since nothing moves where they alone are trained: branch/hidden" in str(report)


def test_a_check_goes_on(tmp_path):
    """From where it was killed, with the same report; another model is refused by what differs."""
    sizes = {"widths": (8, 16), "depths": (), "seeds": 2, "max_seeds": 2, "steps": (1,)}
    printed = []
    whole = setup().check(loss, (X, Y), workdir=tmp_path, progress=printed.append, **sizes)
    assert any(line.startswith("about ") and "2 seeds of each group at 2 shapes" in line for line in printed)
    file = tmp_path / "trainings.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:3]) + "\n" + lines[3][:20])
    again = []
    resumed = setup().check(loss, (X, Y), workdir=tmp_path, progress=again.append, **sizes)
    assert str(resumed) == str(whole)
    assert len(file.read_text().splitlines()) == len(lines)
    assert {tuple(json.loads(line)[0]) for line in file.read_text().splitlines()} == {
        tuple(json.loads(line)[0]) for line in lines
    }
    before = file.read_bytes()
    for other, options, what in (
        (setup(dtype=jnp.bfloat16), {}, "the training step changed"),
        (setup(), {"learning_rate": 0.1}, "the training step changed"),
    ):
        with pytest.raises(WorkdirError, match=what):
            other.check(loss, (X, Y), workdir=tmp_path, **sizes | options)
    with pytest.raises(WorkdirError, match=r"check\.batch was"):
        setup().check(loss, (-X, Y), workdir=tmp_path, **sizes)
    assert file.read_bytes() == before


WRONG_ARGUMENTS = {
    "depths": ({"depths": (10**9,)}, "depths must be at least 1 and less than 1,048,576, got 1000000000"),
    "per_octave": ({"per_octave": 1.5}, "per_octave must be a whole number"),
    "at_once": ({"at_once": -3}, "at_once must be at least 1, got -3"),
    "clip": ({"clip": "x"}, "clip must be a number, got 'x'"),
    "workdir": ({"workdir": 3}, "workdir must be the path of a folder, got 3"),
    "zero byte": ({"workdir": "a\0b"}, "workdir must be the path of a folder"),
    "optimizer": ({"optimizer": lambda m: 3}, "must make an Optax transformation, it makes 3"),
}


@pytest.mark.parametrize("what", WRONG_ARGUMENTS)
def test_wrong_arguments_of_a_sweep(what):
    """They end in one line, before anything is made of them."""
    options, message = WRONG_ARGUMENTS[what]
    with pytest.raises(ValueError, match=message) as error:
        swept((X, Y), batch_size=8, **{"optimizer": "sgd"} | options)
    assert "\n" not in str(error.value)


def test_a_depth_that_no_model_has():
    with pytest.raises(ValueError, match="depth must be at least 1 and less than 1,048,576, got 1000000000"):
        dm.setup("depth_mup", Net, X, width=8, depth=10**9, base=(8, 1))

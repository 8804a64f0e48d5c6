"""examples/train_by_hand.py beside main.py: the factors written by hand are those of the config's training."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from configs import default
from depthmup.settings import from_config
from depthmup.train.build import batches_of, hyper_of, task_of
from depthmup.train.divergence import NEVER
from examples import train_by_hand

WIDTH, DEPTH, STEPS, WARMUP, EPS = 48, 6, 10, 3, 1e-4  # 1.5 times the width and 3 times the depth of the base
LOG2_RATES = (-6, -4)
PATHS = {
    "embed": "embed/embedding",
    "positions": "positions",
    "attention_norm": "blocks/attention_norm/scale",
    "query": "blocks/attention/query/kernel",
    "key": "blocks/attention/key/kernel",
    "value": "blocks/attention/value/kernel",
    "out": "blocks/attention/out/kernel",
    "mlp_norm": "blocks/mlp_norm/scale",
    "mlp_in": "blocks/mlp_in/kernel",
    "mlp_out": "blocks/mlp_out/kernel",
    "norm": "final_norm/scale",
    "readout": "readout/kernel",
}


def settings(log2_rate):
    config = default.get_config("gpt")
    config.model.update(width=WIDTH, depth=DEPTH, heads=train_by_hand.HEADS, norm="rms", use_bias=False)
    base = {"base_width": train_by_hand.BASE_WIDTH, "base_depth": train_by_hand.BASE_DEPTH}
    base_head_dim = train_by_hand.BASE_WIDTH // train_by_hand.HEADS
    config.parameterization.update(name="completep", base_head_dim=base_head_dim, **base)
    config.optimizer.update(name="adamw", learning_rate=2.0**log2_rate, b1=train_by_hand.B1, b2=train_by_hand.B2)
    config.optimizer.update(eps=EPS, weight_decay=train_by_hand.WEIGHT_DECAY)
    config.data.update(batch_size=train_by_hand.BATCH, context=train_by_hand.CONTEXT)
    config.schedule = "linear"
    per_epoch = batches_of(from_config(config)).steps_per_epoch
    config.update(epochs=STEPS / per_epoch, warmup_epochs=WARMUP / per_epoch)
    return from_config(config)


def copied(params):
    """The parameters of the example as those of `models.GPT`."""
    return unflatten_dict({PATHS[name]: leaf for name, leaf in params.items()}, sep="/")


def trained_by_hand(params):
    """(losses (rates, steps), the parameters of each rate) of the example from the same weights."""
    gpt, rates = train_by_hand.GPT(WIDTH, DEPTH), jnp.exp2(jnp.asarray(LOG2_RATES, float))
    state = jax.vmap(lambda rate: (params, gpt.optimizer(rate).init(params)))(rates)
    step, losses = jax.jit(jax.vmap(gpt.step, in_axes=(0, 0, None, None))), []
    data = train_by_hand.load("text", context=train_by_hand.CONTEXT)
    for batch in train_by_hand.Batches(data, train_by_hand.BATCH).train(0, STEPS):
        state, loss = step(state, rates, *batch)
        losses.append(loss)
    return np.stack(losses, 1), [jax.tree.map(lambda leaf, i=i: leaf[i], state[0]) for i in range(len(rates))]


def trained_by_main(params):
    """The same by the step that main.py takes."""
    task = task_of(settings(LOG2_RATES[0]))
    step, losses, after = jax.jit(task.step), [], []
    for log2_rate in LOG2_RATES:
        s = settings(log2_rate)
        hyper, batches = hyper_of(s), batches_of(s)
        state = jax.eval_shape(task.init, hyper)
        tx = task.transformation(hyper, task.learning_rate(hyper, jnp.int32(0)))
        fresh = {"step": jnp.int32(0), "first_loss": jnp.inf, "halted": jnp.int32(NEVER)}
        state = state._replace(params=copied(params), opt_state=tx.init(copied(params)), **fresh)
        losses.append([])
        for number, raw in enumerate(batches.train(0, STEPS)):
            state, metrics = step(state, batches.prepared(raw, number), hyper)
            losses[-1].append(metrics["loss"])
        after.append(state.params)
    return np.array(losses), after


def start():
    """Weights of which none is 0 or 1, so that every factor shows."""
    generator = np.random.default_rng(0)
    gpt = train_by_hand.GPT(WIDTH, DEPTH)
    return {name: generator.normal(p.mean, p.std + 0.1, p.shape) for name, p in gpt.parameters().items()}


def test_ten_steps_are_those_of_main(x64, monkeypatch):
    """In float64: where gradients are almost 0, Adam makes steps of roundings."""
    for name, value in {"STEPS": STEPS, "WARMUP": WARMUP, "EPS": EPS}.items():
        monkeypatch.setattr(train_by_hand, name, value)
    params = jax.tree.map(jnp.asarray, start())
    (losses, after), (expected, expected_after) = trained_by_hand(params), trained_by_main(params)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert (expected[:, -1] < expected[:, 0]).all()
    for of_rate, of_expected in zip(after, expected_after, strict=True):
        by_hand, by_main = flatten_dict(copied(of_rate), sep="/"), flatten_dict(of_expected, sep="/")
        assert by_hand.keys() == by_main.keys()
        for path, leaf in by_main.items():
            np.testing.assert_allclose(by_hand[path], leaf, rtol=1e-6, atol=1e-6 * np.abs(leaf).max(), err_msg=path)


def test_initial_weights_have_the_sizes_of_main():
    s = settings(LOG2_RATES[0])
    expected = flatten_dict(jax.jit(task_of(s).init)(hyper_of(s).arrays()).params, sep="/")
    params = flatten_dict(copied(jax.jit(train_by_hand.GPT(WIDTH, DEPTH).init)(1.0, 0)[0]), sep="/")
    sizes = {path: float(jnp.sqrt(jnp.square(leaf).mean())) for path, leaf in params.items()}
    assert sizes == pytest.approx(
        {path: float(jnp.sqrt(jnp.square(leaf).mean())) for path, leaf in expected.items()}, rel=0.08
    )
    assert {path: leaf.shape for path, leaf in params.items()} == {p: leaf.shape for p, leaf in expected.items()}


def test_a_sweep_goes_on_from_its_checkpoint(tmp_path, monkeypatch, capsys):
    for name, value in {"STEPS": 100, "WARMUP": 10, "BATCH": 2}.items():
        monkeypatch.setattr(train_by_hand, name, value)
    gpt = train_by_hand.GPT(8, 1)
    best = train_by_hand.sweep(gpt, (-12, -5), 2, tmp_path)
    whole = capsys.readouterr().out.splitlines()
    assert best == -5
    assert whole[-1].endswith("(best)")
    shutil.rmtree(tmp_path / "8_1" / "100")
    assert train_by_hand.sweep(gpt, (-12, -5), 2, tmp_path) == best
    assert capsys.readouterr().out.splitlines() == whole[1:]  # the steps up to 50 are not taken again

"""A state split over eight devices trains as one on one device, is saved and restored on any mesh, and is planned."""

import functools
import importlib
import re

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from jax.tree_util import DictKey, GetAttrKey

from configs import text_gpt
from depthmup.cli import verbs
from depthmup.plan import plan
from depthmup.plan.program import CompiledProgram, DoesNotFit, collectives
from depthmup.settings import ParallelSettings, SettingsError, from_config, put
from depthmup.train import BatchOverDevices, StateOverDevices, TrialLoop
from depthmup.train.build import batches_of, hyper_of, task_of
from depthmup.train.checkpoint import Checkpoints
from depthmup.train.devices import part_of_state
from depthmup.train.run import loop_of, train_network
from depthmup.training_settings import Recipe
from depthmup.trials.engine import train as sweep
from depthmup.trials.estimate import at_once
from depthmup.trials.group import Runner
from depthmup.tune.model_sweep import study_of
from tests import tiny
from tests.test_model_sweep import BATCH, RATES, X, Y, loss
from tests.test_model_sweep import setup as cached_setup
from tests.test_model_training import settings
from tests.test_parallel import EVERYTHING, assert_same, double, trained

MESHES = {"data=8": {"data": 8}, "fsdp=8": {"fsdp": 8}, "data=2,fsdp=4": {"data": 2, "fsdp": 4}}
planning = importlib.import_module("depthmup.plan.plan")


def case(family, optimizer, recipe=EVERYTHING, weight_decay=0.0, **model):
    """(task, batches, hyper) with clipping, averaging, warm-up and more."""
    s = settings(family, optimizer, **model)
    hyper = hyper_of(s)
    numbers = {**hyper.optimizer, "weight_decay": weight_decay}
    return task_of(s, recipe), batches_of(s), hyper._replace(warmup=3, optimizer=numbers)


CLIPPED = Recipe(clip=0.5, schedule="constant")
CASES = {
    "momentum": functools.partial(case, "residual_mlp", "momentum", weight_decay=0.3),
    "batch norm, dropout": functools.partial(case, "residual_cnn", "adam", width=8, depth=1, norm="batch", dropout=0.1),
    "gpt": functools.partial(case, "gpt", "adamw", CLIPPED, weight_decay=0.3),
}


@functools.cache
def on_one(name):
    """What `trained` gives on one device. Float64 must be switched on."""
    task, batches, hyper = CASES[name]()
    return trained(task, batches, [hyper], BatchOverDevices(jax.devices()[:1]))


@pytest.mark.parametrize(
    ("name", "mesh"),
    [*(("momentum", mesh) for mesh in MESHES), ("batch norm, dropout", "data=2,fsdp=4"), ("gpt", "fsdp=8")],
)
def test_a_mesh_is_one_device(x64, name, mesh):
    """Ten steps in float64: state, metrics and evaluation, the norm by which gradients are clipped among them."""
    task, batches, hyper = CASES[name]()
    one = on_one(name)
    assert np.ptp(one[1]["loss"][0]) > 0.01
    state, metrics, evaluation = trained(task, batches, [hyper], StateOverDevices(MESHES[mesh]))
    assert_same(one[:2], (state, metrics))
    assert_same(one[2], evaluation, rtol=1e-6)


@pytest.mark.slow
def test_attention_in_blocks_over_a_mesh():
    """A kernel of an accelerator would have to be split over the mesh: the program that could hold one is right."""
    config = text_gpt.get_config()
    config.model.update(width=16, depth=1, scan=True)
    config.data.update(context=520, batch_size=8)
    config.epochs, config.warmup_epochs = 0.003, 0.0005
    one, split = {"parallel.devices": 1}, {"parallel.wrapper": "jit", "parallel.mesh": "data=2,fsdp=4"}
    runs = (put(from_config(config), changes) for changes in (one, split))
    losses = [loop_of(s).run([hyper_of(s)], 3)["test_loss"] for s in runs]
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_muon_over_a_mesh(x64):
    """Its matrix products are of whole matrices."""
    study = study_of(
        cached_setup.__wrapped__(width=16),
        loss,
        (X, Y),
        optimizer="muon",
        batch_size=BATCH,
        steps=3,
        learning_rates=RATES,
        widths=(16,),
    )
    point = study.base_point("muon", "depth_mup")
    states = []
    for placement in (BatchOverDevices(jax.devices()[:1]), StateOverDevices({"fsdp": 8})):
        loop = TrialLoop(point.task, point.feed, placement)
        state, hyper = loop.start([point.hyper(2.0**-5, 0)])
        (stretch,) = loop.stretches(double(state), hyper, 0, [3])
        states.append((placement.get(stretch.state), stretch.read()))
    assert_same(*states, rtol=1e-9)


STACKED = (GetAttrKey("params"), DictKey("blocks"), DictKey("kernel"))
LONE = (GetAttrKey("params"), DictKey("block_0"), DictKey("kernel"))


@pytest.mark.parametrize(
    ("path", "shape", "parts", "axes"),
    [
        (LONE, (16, 64), 8, (None, "fsdp")),  # the largest axis
        (LONE, (64, 16), 8, ("fsdp",)),
        (LONE, (64, 17), 8, ("fsdp",)),
        (LONE, (100, 16), 8, (None, "fsdp")),  # the largest that is divided
        (LONE, (3, 3, 16, 32), 8, (None, None, None, "fsdp")),
        (LONE, (9, 17), 8, ()),
        (LONE, (64,), 8, ()),
        (LONE, (), 8, ()),
        (LONE, (16, 64), 1, ()),
        (STACKED, (64, 16, 8), 8, (None, "fsdp")),  # not the axis over blocks
        (STACKED, (64, 9, 5), 8, ("fsdp",)),  # unless no other is divided
        (STACKED, (64, 16), 8, ()),  # vectors of blocks
    ],
)
def test_how_an_array_is_split(path, shape, parts, axes):
    assert part_of_state(path, shape, parts) == PartitionSpec(*axes)


@functools.cache
def gpt():
    s = settings("gpt", "adamw", width=64, depth=3, heads=4, remat=True)
    return task_of(s), batches_of(s), hyper_of(s)


def bytes_of(leaves):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def test_a_device_holds_its_part():
    """Before and after steps, and from the init on; a step takes over its buffers, and gathers one block at a time."""
    task, batches, hyper = gpt()
    placement = StateOverDevices({"data": 2, "fsdp": 4})
    loop = TrialLoop(task, batches, placement)
    state, hypers = loop.start([hyper])
    whole = bytes_of(jax.tree.leaves(state))
    (stretch,) = loop.stretches(state, hypers, 0, [1])
    for leaves in (jax.tree.leaves(loop.start([hyper])[0]), jax.tree.leaves(stretch.state)):
        for device in range(8):
            assert bytes_of([leaf.addressable_shards[device].data for leaf in leaves]) < 0.27 * whole
    init = loop._init.lower(placement.shapes(hyper.arrays())).compile().memory_analysis()
    assert init.output_size_in_bytes < 0.27 * whole
    assert init.temp_size_in_bytes < 0.5 * whole
    function, arguments = loop.program(hyper)
    step = function.lower(*arguments).compile()
    assert 0.25 * whole < step.memory_analysis().alias_size_in_bytes < 0.27 * whole
    gathered = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather\(", step.as_text())
    assert gathered
    largest = max(np.prod([int(size) for size in shape.split(",")]) for shape in gathered)
    assert largest <= 256 * 64  # a matrix of the MLP of one block, or the embedding
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


def test_no_compilation_after_the_first_steps():
    task, batches, hyper = CASES["momentum"]()
    loop = TrialLoop(task, batches, StateOverDevices({"fsdp": 8}))
    state, hypers = loop.start([hyper])
    sizes = []
    for stretch in loop.stretches(state, hypers, 0, [2, 9, 10]):
        stretch.read()
        loop.evaluate(stretch.state, hypers, batches.dataset.validation)
        sizes.append([function._cache_size() for function in (loop._chunk, loop._evaluate)])
    assert sizes == [[1, 1]] * 3


def test_a_checkpoint_of_one_mesh_is_restored_on_others(tmp_path):
    """On the same mesh training goes on to the bit, on others and by pmap up to rounding."""
    task, batches, hyper = CASES["momentum"]()

    def on(placement, begin, ends, restored=None):
        """States after `ends`, as NumPy arrays."""
        loop = TrialLoop(task, batches, placement)
        state, hypers = loop.start([hyper], restored)
        return [placement.get(stretch.state) for stretch in loop.stretches(state, hypers, begin, ends)], loop

    mesh = StateOverDevices({"fsdp": 8})
    (third, last), loop = on(mesh, 0, [3, 6])
    checkpoints = Checkpoints(tmp_path, {})
    checkpoints.save(3, third)
    checkpoints.wait()
    step, restored, _ = checkpoints.restore(loop.state_shapes([hyper]))
    checkpoints.close()
    assert step == 3
    assert jax.tree.map(np.shape, restored) == jax.tree.map(np.shape, third)
    (same,), _ = on(mesh, 3, [6], restored)
    assert_same(last, same, rtol=0, atol=0)
    for other in (StateOverDevices({"data": 2, "fsdp": 4}), BatchOverDevices()):
        (state,), _ = on(other, 3, [6], restored)
        assert_same(last, state, rtol=1e-4, atol=1e-6)


def mesh(text, **values):
    return {"parallel__wrapper": "jit", "parallel__mesh": text, **values}


MALFORMED = ["", "fsdp", "fsdp=", "fsdp=0", "fsdp=-8", "model=8", "fsdp=8;data=1", "fsdp=8,", "fsdp=4,fsdp=2"]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_meshes(text):
    with pytest.raises(SettingsError, match=r"^parallel.mesh = '.*' must be like .*: some of the axes data and fsdp"):
        tiny.settings(**mesh(text))


def test_meshes_that_cannot_be():
    """One line each, before anything is compiled."""
    for values in ({"parallel__mesh": "fsdp=8"}, mesh("fsdp=8", parallel__devices_per_trial=2)):
        with pytest.raises(SettingsError, match="is for jit: set parallel"):
            tiny.settings(**values)
    for size in (3, 4, 16):
        with pytest.raises(SettingsError, match=f"'fsdp={size}' is of {size} devices, and there are 8: choose sizes"):
            loop_of(tiny.settings(**mesh(f"fsdp={size}")))
    assert loop_of(tiny.settings(**mesh("fsdp=4", parallel__devices=4))).placement.mesh.shape["fsdp"] == 4
    with pytest.raises(SettingsError, match=r"60 cannot be split evenly over 8 devices .* devices by parallel.mesh"):
        train_network(tiny.settings(**mesh("data=2,fsdp=4", data__batch_size=60)))
    with pytest.raises(SettingsError, match="is of 4 devices, and there are 8"):
        sweep(tiny.settings(**mesh("fsdp=4")), "unused", progress=False)
    with pytest.raises(ValueError, match="unknown axis of the mesh 'fdsp'; did you mean 'fsdp'"):
        StateOverDevices({"fdsp": 8})
    with pytest.raises(ValueError, match="a mesh takes one trial at a time, got 2"):
        Runner().loop(tiny.groups(2, **mesh("fsdp=8"))[0])
    assert ParallelSettings(wrapper="jit", mesh="fsdp=2, data=4").axes == {"data": 4, "fsdp": 2}


def test_a_trial_of_a_sweep_over_a_mesh():
    """One at a time; its row is that of a lone trial."""
    rows = []
    for parallel in ({}, mesh("data=2,fsdp=4")):
        (group, *_) = tiny.groups(1, **parallel, sweep__optimizers=("sgd",), sweep__measure=("updates",))
        rows.append(Runner().train(group)[0])
    one, shared = rows
    assert one.row["key"] == shared.row["key"]
    for name in ("loss", "test_loss", "mean_loss"):
        np.testing.assert_allclose(shared.row[name], one.row[name], rtol=1e-4)
    np.testing.assert_allclose(shared.measured["value"], one.measured["value"], rtol=1e-2, atol=1e-5)
    study = tiny.study(**mesh("data=2,fsdp=4", sweep__at_once=4))
    assert at_once(study, group.trials[0]) == 1
    planned = plan(tiny.settings(**mesh("data=2,fsdp=4")), of_sweep=True)
    assert (planned.share, planned.asked, planned.unit) == (8, 1, "trials")


def fake(beside, room):
    """In the place of the compiler: a program takes its state and `beside` bytes for an example of a device."""

    def compiled(function, arguments):
        places = arguments[2][0]
        split = places.sharding.shard_shape(places.shape) if places.sharding else places.shape[1:]
        state, examples = planning.bytes_of(arguments[0]), split[0]
        if state + beside * examples > room:
            raise DoesNotFit(f"needs {state + beside * examples} of {room}")
        return CompiledProgram(state, 0, 0, beside * examples, 0, {}, 1.0)

    return compiled


def test_a_plan_names_the_mesh(monkeypatch, capsys):
    """Where state and gradient do not fit a device, the plan is that of the smallest mesh over which all fits; the
    first to be compiled leaves half of a device to the examples."""
    s = tiny.settings(optimizer__name="adam", optimizer__learning_rate=0.01, parallel__devices=8)
    state = jax.eval_shape(task_of(s).init, hyper_of(s).arrays())
    whole, gradient = (bytes_of(jax.tree.leaves(tree)) for tree in (state, state.params))
    monkeypatch.setattr(planning, "free_memory", lambda device: 8.0 * room)  # eight fake devices share it
    room = whole + gradient - 1
    for beside, expected, fits in (
        (0, "data=2,fsdp=4", True),
        ((room - whole // 6) // 8, "fsdp=8", True),  # beside eight examples a sixth of the state has room
        (whole, "fsdp=8", False),
    ):
        monkeypatch.setattr(planning, "compiled", fake(beside, room))
        result = plan(s)
        assert (result.mesh, not result.refused) == (expected, fits)
        assert "the state takes " in result.whole
        parts = int(expected[-1])
        assert whole / parts <= result.state < 1.2 * whole / parts
    assert verbs.VERBS["plan"](s, None, "a command") == 1
    printed = capsys.readouterr().out
    assert "--config.parallel.wrapper=jit --config.parallel.mesh=fsdp=8, of which" in printed
    assert "by jit over fsdp=8" in printed
    room = whole + gradient + 1  # for the state and its gradient, but for no example
    monkeypatch.setattr(planning, "compiled", fake(room // 40, room // 2))
    result = plan(s)
    assert result.mesh == "data=2,fsdp=4"
    assert result.whole.startswith("not one example fits. needs ")
    monkeypatch.setattr(planning, "compiled", fake(room, room // 2))
    with pytest.raises(SettingsError, match="over fsdp=8: one of its examples does not fit cpu"):
        plan(s)
    monkeypatch.setattr(planning, "compiled", lambda function, arguments: CompiledProgram(1, 0, 0, 0, 0, {}, 1.0))
    result = plan(s)
    assert (result.fits, result.mesh) == (True, "")


FUSED = """HloModule jit_step

%part (a: bf16[8]) -> bf16[16,8] {
  ROOT %gather.1 = bf16[16,8]{1,0:T(8,128)} all-gather(%a), channel_id=7, dimensions={0}
}

%rest (a: bf16[8]) -> bf16[16,8] {
  ROOT %gather.2 = bf16[16,8]{1,0:T(8,128)} all-gather(%a), channel_id=7, dimensions={0}
}

%all-reduce-scatter.1 (a: bf16[8]) -> bf16[4] {
  %sum = bf16[8]{0} all-reduce(%a), channel_id=1, to_apply=%add
  ROOT %part = bf16[4]{0} dynamic-slice(%sum, %place)
}

ENTRY %main (x: bf16[8]) -> bf16[16,8] {
  %x = bf16[8]{0} parameter(0)
  %first = bf16[16,8]{1,0} fusion(%x), kind=kCustom, calls=%part
  %second = bf16[16,8]{1,0} fusion(%x), kind=kCustom, calls=%rest
  %sum = bf16[4]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
  %sum.2 = bf16[4]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
  %sent = (bf16[8]{0}, bf16[8]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x), channel_id=8
  ROOT %all = bf16[16,8]{1,0} copy(%second)
}
"""


def test_exchanges_inside_fusions():
    """A gather that several fusions do in parts counts once, a sum of which each device takes a part has its name, and
    flags of a start are not exchanged."""
    kinds = {"all-gather": (1, 2 * 16 * 8), "reduce-scatter": (2, 2 * 2 * 8), "collective-permute": (1, 2 * 8)}
    assert collectives(FUSED) == kinds

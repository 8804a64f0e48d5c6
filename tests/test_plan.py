"""Plans: the compiler's text is read right, what does not fit is said, and what is compiled is what runs."""

import dataclasses
import importlib

import jax
import numpy as np
import pytest

from configs import default, imagenet_resnet
from depthmup import data
from depthmup.cli import verbs
from depthmup.data.tfds_images import TFDS
from depthmup.plan import plan
from depthmup.plan.plan import largest
from depthmup.plan.program import CompiledProgram, DoesNotFit, collectives
from depthmup.settings import SettingsError, from_config
from depthmup.train.chips import SLICES, check_slice, chip_of
from depthmup.train.run import loop_of
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.engine import checked_trials
from tests import tiny

module = importlib.import_module("depthmup.plan.plan")
TEXT = """HloModule jit_step, is_scheduled=true

%fused (a: f32[8,128]) -> f32[8,128] {
  ROOT %wide = f32[999,999]{1,0:T(8,128)} add(%a, %a)
}

%body (state: (s32[], bf16[6,20])) -> (s32[], bf16[6,20]) {
  %state = (s32[], bf16[6,1,20]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %sum = (f32[16]{0:T(128)}, bf16[2,3]{0,1:T(2,128)}) all-reduce(%h, %h), to_apply=%fused
  ROOT %next = (s32[], bf16[4,20]{1,0:T(8,128)(2,1)}) tuple(%h)
}

%condition (state: (s32[], bf16[4,20])) -> pred[] {
  %length = s32[]{:T(128)} constant(6)
  ROOT %less = pred[] compare(%i, %length), direction=LT
}

%until (state: (s32[])) -> pred[] {
  %minus = s32[] constant(-1)
  ROOT %less = pred[] compare(%i, %minus), direction=LT
}

%steps (state: (s32[])) -> (s32[]) {
  ROOT %scan = (s32[], bf16[4,20]{1,0}) while(%state), condition=%condition, body=%body
}

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[10,100]{0,1:T(8,128)} parameter(0)
  %y = f32[8,128]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%fused
  %gather = (f32[4]{0}, f32[16]{0}) all-gather-start(%y), dimensions={0}
  ROOT %loop = (s32[]) while(%y), condition=%until, body=%steps
}
"""


def test_a_program_is_read():
    """Loops of known length count as often as they run, loops of steps once; operands are not exchanged."""
    assert collectives(TEXT) == {"all-gather": (1, 4 * 16), "all-reduce": (6, 6 * (4 * 16 + 2 * 6))}


def test_a_plan_of_this_machine():
    s = tiny.settings(parallel__devices=2)
    result, loop = plan(s), loop_of(s)
    state = loop.state_shapes([module.hyper_of(s)])
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert (result.devices, result.each, result.unit, result.refused) == (2, 32, "examples", "")
    assert result.program.donated == size
    assert result.program.collectives["all-reduce"][1] >= 4 * sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert "on this machine: 2 x cpu, 32 examples a device" in str(result)


@pytest.mark.parametrize("share", [1, 4])
def test_a_plan_of_a_sweep(share):
    """The dearest program, for the largest of its groups on all devices. Devices that share trials have more of them,
    and sum the gradients of each."""
    s = tiny.settings(parallel__wrapper="jit", parallel__devices_per_trial=share)
    result = plan(s, of_sweep=True)
    study = ConfigStudy(s)
    trials = checked_trials(study)
    dear = [t for t in trials if t.point.depth == max(t.point.depth for t in trials)]
    assert (result.unit, result.devices) == ("trials", len(jax.devices()))
    assert result.asked == -(
        -len([t for t in dear if t.point.program == dear[0].point.program]) // (result.devices // share)
    )
    if share == 1:
        assert "exchanged    nothing" in str(result)
        return
    params = jax.tree.leaves(jax.eval_shape(dear[0].point.task.init, dear[0].hyper.arrays()).params)
    assert set(result.program.collectives) == {"all-reduce"}
    assert result.program.collectives["all-reduce"][1] >= result.asked * 4 * sum(p.size for p in params)
    assert f"{result.each} trials a device, each trial on 4; of each" in str(result)
    assert dataclasses.replace(result, largest=3).remedy == "set sweep.at_once=6, 3 on each of 8 devices"


def fake(memory, room=None):
    """In the place of the compiler: `memory` of a number of examples on a device; a program above `room` is refused."""

    def compiled(function, arguments):
        each = arguments[2][0].shape[-1]
        if room and memory(each) > room:
            raise DoesNotFit(f"needs {memory(each)} of {room}")
        return CompiledProgram(memory(each), 0, 0, 0, 0, {"all-reduce": (1, 3_000_000)}, 1.0)

    return compiled


def test_what_does_not_fit(monkeypatch, capsys):
    """It is halved until it fits; the line through two programs says how many fit, and the remedies follow."""
    monkeypatch.setattr(module, "compiled", fake(lambda each: 100 + 10 * each, room=400))
    monkeypatch.setattr(module, "free_memory", lambda device: 400.0)
    s = tiny.settings()
    result = plan(s)
    assert (result.asked, result.each, result.largest) == (64, 16, 30)
    assert "set data.batch_size=30," in result.remedy
    assert "accumulate=3" in result.remedy
    assert verbs.VERBS["plan"](s, None, "a command") == 1
    assert "DOES NOT FIT with 64 examples a device, compiled with 16. needs 740 of 400" in capsys.readouterr().out
    assert (result.largest, result.program.memory) == (30, 260)
    monkeypatch.setattr(module, "compiled", fake(lambda each: 100 + 10 * each, room=105))
    with pytest.raises(SettingsError, match="one of its examples does not fit cpu: needs 110 of 105"):
        plan(s)


def test_memory():
    """What the results take over from the arguments counts once."""
    assert CompiledProgram(10, 8, 9, 5, 1, {}, 1.0).memory == 10 + (9 - 8) + 5 + 1


def test_how_many_fit():
    assert largest({8: 180, 16: 260}, 1000.0) == 90
    assert largest({8: 180, 16: 180}, 1000.0) is None
    assert largest({8: 180}, 1000.0) is None


def test_wrong_calls(monkeypatch):
    with pytest.raises(ValueError, match="unknown topology 'v5e:4x5'; did you mean 'v5e:4x8'"):
        plan(tiny.settings(), "v5e:4x5")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"--topology=v5e:4x4 needs .* pip install -e '\.\[tpu\]'"):
        plan(tiny.settings(), "v5e:4x4")
    with pytest.raises(SettingsError, match="64 cannot be split evenly over 5 devices"):
        plan(tiny.settings(parallel__devices=5))


def test_chips():
    for kind, chip in (("TPU v5 lite", 197e12), ("TPU v5", 459e12), ("TPU v6 lite", 918e12), ("NVIDIA H200", 989e12)):
        assert chip_of(kind).peak == chip
    assert chip_of("cpu") is None
    for kind, slices in SLICES.items():
        for shape in slices.shapes:
            check_slice(f"{kind}:{shape}")


@pytest.mark.parametrize("name", ["cifar10", "imagenet2012"])
def test_blank_images_are_a_data_set(name):
    """Its shapes and numbers are the data set's; a run takes them, in memory or decoded from records."""
    size = 32 if name == "imagenet2012" else None
    blank = data.load(f"blank:{name}", image_size=size)
    assert blank.train.examples + blank.validation.examples == TFDS[name].examples[0]
    assert (blank.test.examples, blank.classes) == (TFDS[name].examples[1], TFDS[name].classes)
    config = (imagenet_resnet if size else default).get_config(*(() if size else ("cnn",)))
    config.model.width, config.model.depth, config.data.name = 4, 1, f"blank:{name}"
    config.data.update(image_size=size, batch_size=8, workers=0)
    s = from_config(config)
    loop = loop_of(s)
    state, hyper = loop.start([module.hyper_of(s)])
    (stretch,) = loop.stretches(state, hyper, 0, [1])
    assert np.isfinite(stretch.read()["loss"]).all()
    with pytest.raises(ValueError, match="unknown data set 'blank:cifr10'"):
        data.load("blank:cifr10")


def test_data_that_are_not_there_can_be_planned(monkeypatch):
    monkeypatch.setattr(module, "compiled", fake(lambda each: 1000 * each))
    config = imagenet_resnet.get_config()
    config.model.width = 4
    result = plan(from_config(config))
    assert " 180,160 steps" in result.what  # the number in the config's header

"""Coordinate checks of two vision families on 8x8 images, at three depths (`make checks` has all of them)."""

import functools

import pytest

import depthmup as dm
from configs import default
from depthmup.settings import from_config
from depthmup.verbs import probe_at

# family: (log2 learning rate of SGD and Adam, width, groups of parameters, besides "all")
FAMILIES = {
    "simple_resnet": ((-5.0, -10.0), 256, ("input", "hidden", "branch/hidden", "readout")),
    "vit": ((-12.0, -13.0), 64, ("input", "branch/hidden", "branch/vector bias", "readout")),
}


@functools.cache
def settings(family, name, optimizer):
    config = default.get_config(family)
    config.parameterization.name = name
    config.check.batch_size = 8
    config.check.log2_learning_rates[optimizer] = FAMILIES[family][0][optimizer == "adam"]
    return from_config(config)


def check(family, name, optimizer, seeds):
    _, width, groups = FAMILIES[family]

    def probe(width, depth):
        return probe_at(settings(family, name, optimizer), optimizer, width, depth)._replace(groups=groups)

    return dm.coordinate_check(probe, depths=(8, 16, 32), width=width, seeds=seeds, steps=(1, 3), title=name)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("family", FAMILIES)
def test_flat_in_depth_under_depth_mup_but_not_under_sp(family, optimizer):
    report = check(family, "depth_mup", optimizer, seeds=32 if optimizer == "sgd" else 12)
    assert report.ok, str(report)
    assert {s.group for s in report.slopes if s.judged} == {*FAMILIES[family][2], "all"}
    logits = [s for s in report.slopes if (s.group, s.quantity) == ("all", "logits")]
    assert all(abs(s.slope) < 0.1 for s in logits), str(report)
    standard = check(family, "sp", optimizer, seeds=2)
    assert not any(s.ok for s in standard.slopes if s.group == "all" and s.judged), str(standard)

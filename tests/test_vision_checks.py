"""Coordinate checks of two vision families on 8x8 images, at three depths (`make checks` has all of them)."""

import functools

import pytest

import depthmup as dm
from configs import default
from depthmup.settings import from_config
from depthmup.train.check import probe_at

# Long by nature: what happens at three depths, by many seeds.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("optimized")]

# family: (optimizer, log2 learning rate, width, groups of parameters besides "all")
FAMILIES = {
    "simple_resnet": ("adam", -10.0, 256, ("hidden", "branch/hidden")),
    "vit": ("sgd", -12.0, 64, ("branch/hidden", "readout")),
}


@functools.cache
def settings(family, name):
    optimizer, rate, *_ = FAMILIES[family]
    config = default.get_config(family)
    config.parameterization.name = name
    config.check.batch_size = 8
    config.check.log2_learning_rates[optimizer] = rate
    return from_config(config)


def check(family, name, max_seeds):
    optimizer, _, width, groups = FAMILIES[family]

    def probe(width, depth):
        return probe_at(settings(family, name), optimizer, width, depth)._replace(groups=groups)

    return dm.coordinate_check(probe, depths=(8, 16, 32), width=width, max_seeds=max_seeds, steps=(1, 3), title=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_flat_in_depth_under_depth_mup_but_not_under_sp(family):
    report = check(family, "depth_mup", max_seeds=128)
    assert report.ok, str(report)
    assert {s.group for s in report.slopes if s.judged} == {*FAMILIES[family][3], "all"}
    logits = [s for s in report.slopes if (s.group, s.quantity) == ("all", "logits")]
    assert all(abs(s.plain.slope) < 0.1 for s in logits), str(report)
    standard = check(family, "sp", max_seeds=8)
    assert not any(s.answer == "ok" for s in standard.slopes if s.group == "all"), str(standard)

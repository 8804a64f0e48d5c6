"""Programs for TPU slices, by the TPU's own compiler: what a step exchanges, keeps and copies. Needs no TPU.

The small ones are for `make test-slow`, the others for `make pods`, which prints each plan.
"""

import importlib.util

import jax
import pytest

from configs import default, digits, imagenet_resnet, imagenet_vit, patches16_simple_resnet, text_gpt
from depthmup.data.tfds_images import BLANK
from depthmup.plan import plan
from depthmup.settings import from_config, put
from depthmup.train.build import batches_of, hyper_of, task_of

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU's compiler: pip install -e '.[tpu]'"
)


def imagenet(config, batch, size=224, **model):
    s = from_config(config.get_config())
    options = {f"model.{key}": value for key, value in {"dtype": "bfloat16", **model}.items()}
    return put(s, {"data.batch_size": batch, "data.image_size": size, **options})


def resnet50(batch):
    """Its base is itself: depth 1 of stages of 3, 4, 6 and 3 blocks."""
    s = imagenet(imagenet_resnet, batch, stages=(3, 4, 6, 3), bottleneck=True, depth=1)
    return put(s, {"parameterization.base_depth": 1})


def small(family, **values):
    return put(from_config(default.get_config(family)), values)


def shared(settings, devices):
    """A sweep, each of whose trials is on so many devices."""
    return put(settings, {"parallel.wrapper": "jit", "parallel.devices_per_trial": devices})


SMALL_CNN = {"model.norm": "batch", "model.depth": 2, "sweep.widths": (), "sweep.depths": (2,), "sweep.at_once": 8}
RESNET50_NORMS = 53
# {name: (settings, slice, of a sweep, number of batch norms)}
SMALL = {
    "images": (imagenet(imagenet_resnet, 64, 32, width=8), "v5e:2x2", False, 20),
    "accumulated": (small("residual_mlp", accumulate=4), "v5e:2x2", False, 0),
    "sweep": (from_config(digits.get_config()), "v5e:2x2", True, 0),
    "sweep of shared trials": (shared(small("residual_cnn", **SMALL_CNN), 2), "v5e:2x2", True, 4),
}
LARGE = {
    "ResNet-50, 16 chips": (resnet50(1024), "v5e:4x4", False, RESNET50_NORMS),
    "ResNet-50, 256 chips": (resnet50(16384), "v5e:16x16", False, RESNET50_NORMS),
    "ViT-S/16, 16 chips": (imagenet(imagenet_vit, 1024), "v5e:4x4", False, 0),
    "ViT-S/16, 256 chips": (imagenet(imagenet_vit, 16384), "v5e:16x16", False, 0),
    "residual MLP of depth 1,000": (small("residual_mlp", **{"model.depth": 1000}), "v5p:2x2x1", False, 0),
    "sweep of residual MLPs, v5e": (from_config(digits.get_config()), "v5e:2x2", True, 0),
    "sweep of residual MLPs, v6e": (from_config(digits.get_config()), "v6e:2x2", True, 0),
    "sweep of SimpleResNets, v5e": (from_config(patches16_simple_resnet.get_config()), "v5e:2x2", True, 0),
    "sweep of SimpleResNets, v6e": (from_config(patches16_simple_resnet.get_config()), "v6e:2x2", True, 0),
}


def assert_fits(settings, topology, of_sweep, norms):
    """It fits; it donates its state; a run sums gradients once and each batch norm's statistics once forwards and once
    backwards, of all trials of a sweep that devices share together; a sweep of others exchanges nothing."""
    result = plan(settings, topology, of_sweep)
    print(f"\n{result}")
    program = result.program
    assert not result.refused
    assert program.memory < result.memory
    if of_sweep and result.share == 1:
        assert not program.collectives
        return
    name = settings.data.name if settings.data.name == "digits" else BLANK + settings.data.name
    s = put(settings, {"data.name": name})
    state = jax.eval_shape(task_of(s).init, hyper_of(s).arrays())
    trials = result.each if of_sweep else 1
    bytes_of = lambda tree: trials * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))  # noqa: E731
    assert program.donated >= bytes_of(state)
    assert set(program.collectives) == {"all-reduce"}
    number, sent = program.collectives["all-reduce"]
    assert number <= 1 + 2 * norms
    assert bytes_of(state.params) <= sent <= 1.02 * bytes_of((state.params, *[state.statistics] * 4)) + 64


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_small_programs(name):
    assert_fits(*SMALL[name])


@needs_libtpu
@pytest.mark.pods
@pytest.mark.parametrize("name", LARGE)
def test_large_programs(name):
    assert_fits(*LARGE[name])


def gpt(mesh=None, **values):
    options = {"model.dtype": "bfloat16", "model.remat": True, **values}
    parallel = {"parallel.wrapper": "jit", "parallel.mesh": mesh} if mesh else {}
    return put(from_config(text_gpt.get_config()), options | parallel)


@needs_libtpu
@pytest.mark.slow
def test_a_state_over_a_mesh():
    """Each chip holds its part, gathers weights and scatters the sums of their gradients; the sum over "data" and those
    of vectors are left."""
    result = plan(gpt("data=2,fsdp=2", **{"model.width": 256, "data.context": 128}), "v5e:2x2")
    print(f"\n{result}")
    s = gpt(**{"model.width": 256, "data.context": 128})
    state = jax.eval_shape(task_of(s).init, hyper_of(s).arrays())
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert 0.5 * whole < result.state < 0.52 * whole
    assert result.program.donated < 0.6 * whole  # with what the layouts of a TPU fill up
    assert {"all-gather", "reduce-scatter", "all-reduce"} <= set(result.program.collectives)


@needs_libtpu
@pytest.mark.pods
def test_a_gpt_of_a_billion_parameters():
    """It does not fit a chip, and fits over the mesh that its plan names."""
    large = {"model.width": 2048, "model.depth": 24, "model.heads": 16, "data.context": 1024, "data.batch_size": 64}
    result = plan(gpt(**large), "v5e:4x4")
    print(f"\n{result}")
    assert result.whole
    assert (result.mesh, result.refused) == ("data=4,fsdp=4", "")
    assert result.program.memory < 0.5 * result.memory


@needs_libtpu
@pytest.mark.slow
def test_the_training_split_is_not_copied():
    """Into the layout in which a program picks a batch from it: for images that would be eight times its bytes."""
    s = put(from_config(patches16_simple_resnet.get_config()), {"model.width": 16})
    result = plan(s, "v5e:2x2")
    split = batches_of(s).dataset.train.inputs.nbytes
    assert result.program.arguments > split
    assert result.program.temporaries < 0.5 * split

"""Every family through the one training step: it learns and carries statistics; wrong settings raise errors."""

import jax
import numpy as np
import pytest

from configs import default
from depthmup.declare import declared
from depthmup.models import MODELS
from depthmup.settings import SettingsError, from_config
from depthmup.train import TrialLoop, TrialsOverDevices
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from depthmup.train.devices import trial_layout

SIZES = {
    "mlp": dict(width=16, depth=2),
    "residual_mlp": dict(width=16, depth=2),
    "cnn": dict(width=8, depth=2),
    "residual_cnn": dict(width=8, depth=2, norm="batch", dropout=0.1),
    "simple_resnet": dict(width=64, depth=3, norm="batch"),
    "resnet": dict(width=4, depth=1),
    "vit": dict(width=16, depth=1, heads=2, patch=4),
    "gpt": dict(width=16, depth=1, heads=2),
}


def settings(family, optimizer="adam", **model):
    config = default.get_config(family)
    for key, value in {**SIZES[family], **model}.items():
        config.model[key] = value
    config.optimizer.name, config.optimizer.learning_rate = optimizer, 2.0**-7
    config.parameterization.base_width, config.parameterization.base_depth = 16, 2
    config.schedule, config.data.batch_size = "constant", 32
    config.data.context = 16 if config.data.name == "text" else None
    return from_config(config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "dtype"), [*((name, "float32") for name in MODELS), ("vit", "bfloat16"), ("gpt", "bfloat16")]
)
def test_twenty_steps_lower_the_loss(family, dtype):
    s, seen = settings(family, dtype=dtype), []
    loop = TrialLoop(task_of(s), batches_of(s), TrialsOverDevices(1))
    metrics = loop.run([hyper_of(s)], 20, report=lambda _, metrics: seen.append(metrics["loss"]))
    losses = np.concatenate(seen, axis=1)[0]
    assert losses.shape == (20,)
    assert metrics["loss"][0] < losses[0] - 0.05
    assert losses[-5:].mean() < losses[:5].mean() - 0.05


def test_statistics_are_carried(x64):
    """After a step: 0.9 old + 0.1 of the batch's, as PyTorch's; evaluation uses them and leaves them."""
    s = settings("resnet")
    task, hyper, batch = task_of(s), hyper_of(s).arrays(), examples(batches_of(s), 32)
    state = jax.jit(task.init)(hyper)
    after, _ = jax.jit(task.step)(state, batch, hyper)
    kernel = np.asarray(state.params["read_in"]["kernel"], np.float64)[:, :, 0]
    x = np.pad(np.asarray(batch[0], np.float64)[..., 0], ((0, 0), (1, 1), (1, 1)))
    first = sum(x[:, i : i + 8, j : j + 8, None] * kernel[i, j] for i in range(3) for j in range(3))
    old, new = (t.statistics["batch_stats"]["read_in_norm"] for t in (state, after))
    np.testing.assert_allclose(new["mean"], 0.9 * old["mean"] + 0.1 * first.mean((0, 1, 2)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(new["var"], 0.9 * old["var"] + 0.1 * first.var((0, 1, 2)), rtol=1e-4)
    evaluate = jax.jit(task.evaluate)
    loss_after = evaluate(after, batch, hyper)["loss"].compute()
    loss_before = evaluate(after._replace(statistics=state.statistics), batch, hyper)["loss"].compute()
    assert abs(loss_after - loss_before) > 1e-4


def test_layouts_on_a_cpu():
    """Trials run one after another, blocks are scanned (docs/notes.md), and a config overrides the latter."""
    assert trial_layout() == trial_layout("cpu") == "map"
    assert trial_layout("gpu") == trial_layout("tpu") == "vmap"
    for family in MODELS:
        assert task_of(settings(family)).model.scan
        assert not task_of(settings(family, scan=False)).model.scan


@pytest.mark.parametrize(
    ("family", "model", "message"),
    [
        ("vit", {"heads": 3}, "model: heads must divide the width: 3 heads, width 16"),
        ("vit", {"patch": 3}, "model: patch must divide the image: patches of 3x3, image of .8, 8."),
        ("simple_resnet", {"depth": 2}, "model: SimpleResNet needs a depth of 3 or more blocks"),
        ("resnet", {"stem": "imagenet"}, "model: ResNet halves the image 4 times"),
        ("resnet", {"norm": "bacth"}, "unknown model.norm 'bacth'; did you mean 'batch'"),
        ("cnn", {"padding": "wrap"}, "unknown model.padding 'wrap'"),
    ],
)
def test_errors_before_anything_is_built(family, model, message):
    with pytest.raises(SettingsError, match=message):
        task_of(settings(family, **model))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch": 4}, "config.model.patch is a setting of vit, not of residual_mlp: choose the family by the config"),
        ({"heads": 4}, "config.model.heads is a setting of vit, gpt, not of residual_mlp"),
        ({"use_bais": True}, "unknown key 'config.model.use_bais'; did you mean 'config.model.use_bias'"),
        ({"name": "resnt"}, "unknown model.name 'resnt'; did you mean 'resnet'"),
        ({"name": "vit"}, "config.model.readout is a setting of residual_mlp, not of vit"),
        ({"norm": 3}, "config.model.norm must be str"),
    ],
)
def test_model_settings_errors(change, message):
    config = default.get_config().to_dict()
    config["model"] |= change
    with pytest.raises(SettingsError, match=message):
        from_config(config)


def test_settings_of_a_family_are_complete():
    """configs/default.py has exactly the attributes of each family, with the classes' defaults or a reason."""
    for family, model in MODELS.items():
        options = from_config(default.get_config(family)).model.options
        assert {"width", "depth", *options} == set(declared(model))
    with pytest.raises(ValueError, match="unknown model family 'resnt'"):
        default.get_config("resnt")

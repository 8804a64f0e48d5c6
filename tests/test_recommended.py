"""One answer to "which parameterization?": in explain, grow, pages, docstrings, examples and configs."""

import importlib
import re
from pathlib import Path

import jax.numpy as jnp
import pytest

import depthmup as dm
from depthmup.report.grow import grow
from depthmup.rules import recommended
from depthmup.rules.optim import OPTIMIZERS, family_of
from depthmup.settings import from_config, put
from depthmup.train.build import task_of

ROOT = Path(__file__).parent.parent
# What the branches of the models are that a text sets up, of all or by factory; its optimizer is of the family "adam".
BRANCHES: dict[str, str | dict[str, str]] = {
    "README.md": "several",
    "depthmup/own_model.py": "several",
    "docs/api/core.md": "one",
    "docs/batch.md": "several",
    "docs/guide/choose.md": "several",
    "docs/guide/codebases.md": "several",
    "docs/guide/devices.md": "one",
    "docs/guide/equinox.md": "one",
    "docs/guide/from-completep.md": "several",
    "docs/guide/haiku.md": "one",
    "docs/guide/linen.md": "one",
    "docs/guide/nnx.md": "several",
    "docs/guide/questions.md": "several",
    "docs/guide/optuna-wandb.md": "one",
    "docs/index.md": "one",
    "docs/your-model.md": {"Net": "one", "Factored": "one", "factory": "several", "lambda w": "several"},
    "examples/big_vision_vit.py": "several",
    "examples/equinox_mlp.py": "one",
    "examples/haliax_mlp.py": "several",
    "examples/linen_vit.py": "several",
    "examples/nanodo_lm.py": "several",
    "examples/nnx_gpt.py": "several",
    "examples/sweep_your_model.py": "one",
    "examples/train_by_hand.py": "several",
    "examples/tunix_sft.py": "several",
}
# Configs with the rule of a paper's figure, and those whose default optimizer, SGD, has no answer or whose table in
# docs/data.md was trained under another.
OF_PAPERS = {
    *("cifar10_cnn", "cifar10_residual_cnn", "cifar10_resnet", "cifar10_simple_resnet", "imagenet_resnet"),
    *("imagenet_vit", "papers", "patches16_simple_resnet", "patches16_vit", "tiny_imagenet_vit", "default", "patches"),
}


def setups(text):
    """(name of the parameterization, the rest of the line) of each dm.setup."""
    return re.findall(r'dm\.setup\(\s*"(\w+)",([^\n]*)', text)


def test_every_text_sets_up_what_is_recommended():
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]
    by_text = {
        str(path.relative_to(ROOT)): setups(path.read_text()) for path in [*texts, ROOT / "depthmup/own_model.py"]
    }
    assert {path for path, names in by_text.items() if names} == {*BRANCHES, "docs/guide/from-mup.md"}
    for path, branches in BRANCHES.items():
        for name, rest in by_text[path]:
            factory = rest.split(",")[0].strip(" )")
            kind = branches if isinstance(branches, str) else branches.get(factory)
            assert name == "am_mup" or name == recommended.take(kind, "adam"), (path, name, factory)


@pytest.mark.parametrize("path", ["README.md", "docs/guide/choose.md", "docs/index.md", "depthmup/own_model.py"])
def test_the_answer_is_said_in_the_same_words(path):
    words = re.sub(r"[*`\">]", "", (ROOT / path).read_text())
    assert " ".join(re.sub(r"[`]", "", recommended.sentence()).split()) in " ".join(words.split())


def test_explain_says_it():
    def factory(width, depth, key):
        return {"in": jnp.ones((8, width)), "blocks": jnp.ones((depth, width, width)), "out": jnp.ones((width, 2))}

    def call(params, x):
        h = x @ params["in"]
        for weight in params["blocks"]:
            h = h + jnp.tanh(h) @ weight
        return h @ params["out"]

    m = dm.setup("depth_mup", factory, jnp.ones((4, 8)), width=8, depth=4, base=(4, 2), call=call, fan_in_init=False)
    lines = {name: str(m.explain(optimizer=name)).splitlines()[-1] for name in ("adamw", "muon", "sgd")}
    several = r"branches of two weight layers or more .*: {}; branches of one weight layer: depth_mup; .*: mup \("
    for name, take in {
        "adamw": "completep",
        "muon": "depth_ode",
        "sgd": "undecided, compare mup and depth_mup",
    }.items():
        assert re.search(several.format(take), lines[name]), lines[name]


def test_every_optimizer_has_an_answer():
    for name in OPTIMIZERS:
        assert recommended.take("one", family_of(name)) == "depth_mup"
        assert recommended.take("alone", family_of(name)) == "mup"
        recommended.line(name, family_of(name))


def test_the_names_are_those_of_the_decision_table():
    """The rows of docs/guide/choose.md take their names from here; the table of names agrees with them."""
    text = (ROOT / "docs/guide/choose.md").read_text()
    used = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| [^|]* \| ([^|]*) \|$", text, re.M))
    assert used["depth_mup"].startswith("for branches of one weight layer")
    assert used["completep"].startswith("for branches of two layers or more with Adam or AdamW")
    assert used["depth_ode"].startswith("for branches of two layers or more with Muon")


def test_every_config_has_what_is_recommended():
    names = {path.stem for path in (ROOT / "configs").glob("*.py")}
    assert names >= OF_PAPERS
    for name in names - OF_PAPERS:
        settings = from_config(importlib.import_module(f"configs.{name}").get_config())
        several = max(max(ways) for ways in task_of(settings).model.ways) > 1
        family = family_of(settings.optimizer.name)
        assert settings.parameterization.name == recommended.take("several" if several else "one", family), name
        assert settings.parameterization.name in settings.sweep.parameterizations, name


def test_grow_goes_on_from_sp_under_it():
    config = importlib.import_module("configs.text_gpt").get_config()
    tuned = put(from_config(config), {"parameterization.name": "sp"})
    assert grow(tuned, 64, 4).changes["parameterization.name"] == "completep"

"""The sweeps of language models: a case trained through `m.sweep`, twins, the tables from planted rows."""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

from experiments import gpt_linen, language

RATES = {"learning_rates": 2.0 ** np.arange(-8, -3), "per_octave": 1}
TINY = {"widths": (8,), "depths": (1, 2), **RATES, "seeds": 2, "steps": 12, "progress": False}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(language, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(language, "ROWS", tmp_path / "language.parquet")
    monkeypatch.setattr(language, "IMAGES", tmp_path / "images")
    return tmp_path


@pytest.mark.slow
def test_a_case_is_trained(folder, monkeypatch):
    """completep is depth_mup at the base depth, to the last bit, and nowhere else."""
    two = language.Case(gpt_linen.GPT, ("depth_mup", "completep"), suffix=" here")
    monkeypatch.setattr(language, "CASES", {"two": two})
    monkeypatch.setattr(language, "BASE", (8, 1))
    monkeypatch.setattr(language, "SWEEP", TINY)
    rows = language.train("two")
    assert rows["loss"].between(2, math.log(256) + 0.5).all()
    means = rows.groupby("learning_rate")["loss"].mean()
    assert means[2**-4] < means[2**-8]  # it learns
    assert rows.groupby(["depth", "parameterization", "learning_rate"])["seed"].nunique().eq(2).all()
    losses = rows.set_index(["parameterization", "depth"])["loss"]
    at = [losses.loc[f"{name} here"] for name in two.parameterizations]
    assert (at[0].loc[1].to_numpy() == at[1].loc[1].to_numpy()).all()
    assert (at[0].loc[2].to_numpy() != at[1].loc[2].to_numpy()).all()


def plant(folder, centre):
    """Rows with parabolas around log2 rates centre(parameterization, depth). At depth 2 all but sp are the same."""
    rng, rows = np.random.default_rng(0), []
    noise = functools.cache(lambda *trial: 0.001 * rng.standard_normal())
    for case in language.CASES.values():
        names = [f"{name}{case.suffix}" for name in case.parameterizations]
        shapes = [(32, d) for d in language.SWEEP["depths"]] + [(64, 2), (128, 2)]
        for name, (w, d), octave, seed in itertools.product(names, shapes, range(-11, -2), (0, 1)):
            twin = "mup" if d == 2 and name in ("depth_mup", "completep", "depth_ode") else name
            twin = "sp" if (twin, w) == ("mup", 32) else twin
            value = 2.0 + 0.05 * (octave - centre(name, d)) ** 2 + noise(case.optimizer, twin, w, d, octave, seed)
            rows.append((case.optimizer, name, w, d, 2.0**octave, seed, value, False))
    pandas.DataFrame(rows, columns=language.COLUMNS).to_parquet(language.ROWS)


def test_the_tables(folder):
    """sp, which is mup over depth, falls by half an octave a doubling, the others stay; pictures are drawn."""
    plant(folder, lambda name, depth: -6 - 0.5 * math.log2(depth / 2) * (name in ("sp", "mup")))
    text = language.tables()
    rows = {tuple(line.split(" | ")[:2]): line for line in text.splitlines() if line.startswith("| ")}
    assert re.search(r"depth \| -0\.(4|5)\d \[", rows["| sp = mup, adamw", "depth"])
    assert ", does not transfer" in rows["| sp = mup, adamw", "depth"]
    for name in ("depth_mup, adamw", "completep, adamw", "depth_mup, muon", "depth_ode, muon", "depth_mup nnx, adamw"):
        assert ", transfers, " in rows[f"| {name}", "depth"]
    for name in ("sp", "mup = depth_mup = completep", "depth_mup nnx"):
        assert ", transfers, " in rows[f"| {name}, adamw", "width"]
    assert ", transfers, " in rows["| depth_mup = depth_ode, muon", "width"]
    assert len(rows) == 1 + 10  # a header; the same trainings have one row
    (folder / "images" / "language").mkdir(parents=True)
    language.draw()
    pictures = set(re.findall(r"\]\(images/(.*?)\)", text))
    assert {str(path.relative_to(folder / "images")) for path in folder.rglob("*.png")} == pictures
    assert len(pictures) == 2
    assert "Best loss of `completep` against `depth_mup` with adamw (paired seeds): " in text


def test_best_losses_are_compared_seed_by_seed():
    """By hand: 10% below at every seed, though seeds differ by more."""
    others = [np.array([2.0, 3.0, 4.0])] * 2
    best = [losses * share for losses, share in zip(others, (1.0, 0.9), strict=True)]
    assert language.compared(best, others, (2, 4)) == "-10.0% [-10.0, -10.0] at depth 4"


@pytest.mark.parametrize("first", ["sp", "mup"])
def test_at_the_base_a_sweep_against_other_rules_starts_with_one_model(first):
    """Attention, too: `under` takes the head size of the base where the first rule does not use it."""
    m, tokens = language.setup(first, gpt_linen.GPT, fan_in_init=True), jnp.arange(32)[None]
    logits = m.apply(m.init(jax.random.key(0)), tokens)
    for name in ("sp", "depth_mup", "completep"):
        other = m.under(name)
        np.testing.assert_allclose(other.apply(other.init(jax.random.key(0)), tokens), logits, atol=1e-6)

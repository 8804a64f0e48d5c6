"""The study of language models: trainings, rows that are kept, the page from planted rows."""

import json
import math
import re

import numpy as np
import pandas
import pytest

from experiments import layer_kinds
from experiments.language import page, study
from experiments.language.text import corpus, digest

TINY = study.Scale((8, 1), (8, 16), (1, 2), (-6, -4), 2, 12, 2, 8)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "ROWS", tmp_path / "rows")
    monkeypatch.setattr(page, "PAGE", tmp_path / "language.md")
    monkeypatch.setattr(page, "IMAGES", tmp_path / "images" / "language")
    monkeypatch.setattr(layer_kinds, "ROWS", tmp_path / "layer_kinds.parquet")
    return tmp_path


def test_text():
    text = bytes(corpus()).decode()
    assert len(text) > 10**6
    assert text.count(np.absolute.__doc__) == 1  # np.abs has the same one
    assert re.fullmatch(r"NumPy [\d.]+, [0-9a-f]{12}", digest())


@pytest.mark.parametrize("name", ["depth_mup", "depth_mup_nnx"])
def test_trainings_are_kept_and_go_on(name, folder, monkeypatch):
    monkeypatch.setitem(study.SCALES, "demo", TINY)
    said = []
    monkeypatch.setattr(study.Scale, "shapes", [(8, 1)])
    study.train(name, "demo", said.append)
    monkeypatch.undo()
    monkeypatch.setattr(study, "ROWS", folder / "rows")
    monkeypatch.setitem(study.SCALES, "demo", TINY)
    monkeypatch.setattr(study.Scale, "shapes", [(8, 1), (8, 2)])
    study.train(name, "demo", said.append)
    assert said == [f"{name}: width 8, depth 1", f"{name}: width 8, depth 2"]
    rows = study.read(name, "demo")
    assert list(rows.groupby(["depth", "learning_rate"])["seed"].nunique()) == [2] * 4
    assert rows["loss"].between(2, math.log(256) + 0.5).all()
    means = rows.groupby("learning_rate")["loss"].mean()
    assert means[2**-4] < means[2**-6]  # it learns


def test_twins_train_the_same():
    """At the base width mup is sp; at the base depth depth_mup and completep are mup, depth_ode is depth_mup; and
    nowhere else."""
    scale, shapes = study.SCALES["demo"], study.SCALES["demo"].shapes
    twins = {
        name: {study.twin(name, "demo", *shape) for shape in shapes if shape != scale.base} for name in study.CASES
    }
    assert twins.pop("mup") == {"mup", "sp"}
    assert twins.pop("depth_mup") == {"depth_mup", "mup"}
    assert twins.pop("completep") == {"completep", "mup"}
    assert twins.pop("depth_ode_muon") == {"depth_ode_muon", "depth_mup_muon"}
    assert all(own == {name} for name, own in twins.items())
    loss = {}
    for name, shape in (
        ("sp", (8, 2)),
        ("mup", (8, 2)),
        ("mup", (16, 1)),
        ("depth_mup", (16, 1)),
        ("completep", (16, 1)),
        ("depth_mup_muon", (16, 1)),
        ("depth_ode_muon", (16, 1)),
    ):
        loss[name, shape] = [row["loss"] for row in study.trials(study.CASES[name], TINY, *shape)]
    np.testing.assert_allclose(loss["mup", (8, 2)], loss["sp", (8, 2)], rtol=1e-4)
    for name in ("depth_mup", "completep"):
        np.testing.assert_allclose(loss[name, (16, 1)], loss["mup", (16, 1)], rtol=1e-4)
    np.testing.assert_allclose(loss["depth_ode_muon", (16, 1)], loss["depth_mup_muon", (16, 1)], rtol=1e-4)


def test_only_the_depths_that_are_asked_for(folder, monkeypatch):
    monkeypatch.setitem(study.SCALES, "demo", TINY)
    said = []
    study.train("sp", "demo", said.append, depths=[2])
    assert said == ["sp: width 8, depth 2"]


def test_all_seeds_train_around_the_best_of_the_first():
    """Of seven rates the best is the third: the rows are those of its neighbours, the same as on the whole grid."""
    scale = TINY._replace(octaves=(-14, -11, -8, -6, 2, 5, 8))
    case, whole = study.CASES["sp"], study.trials(study.CASES["sp"], scale, 8, 1)
    near = study.trials(case, scale._replace(reach=1), 8, 1)
    means = pandas.DataFrame(whole).query("seed == 0").set_index("learning_rate")["loss"]
    assert means[[2.0**x for x in scale.octaves[::2]]].idxmin() == 2.0**-8
    assert near == [row for row in whole if row["learning_rate"] in (2.0**-11, 2.0**-8, 2.0**-6)]


def test_as_many_rates_where_the_best_is_at_the_edge_of_the_grid():
    rows = study.trials(study.CASES["sp"], TINY._replace(octaves=(-8, -6, 2, 5, 8), reach=1), 8, 1)
    assert [row["learning_rate"] for row in rows[:: TINY.seeds]] == [2.0**-8, 2.0**-6, 2.0**2]


def test_rows_of_a_twin_are_copied(folder, monkeypatch):
    monkeypatch.setitem(study.SCALES, "demo", TINY)
    monkeypatch.setattr(study.Scale, "shapes", [(8, 1), (8, 2)])
    said = []
    for name in ("sp", "mup"):
        study.train(name, "demo", said.append)
    assert said[2:] == ["mup: width 8, depth 1, as sp", "mup: width 8, depth 2, as sp"]
    pandas.testing.assert_frame_equal(study.read("mup", "demo"), study.read("sp", "demo"))


def test_rows_of_other_settings_are_refused(folder, monkeypatch):
    plant(folder, lambda name, size: -6)
    monkeypatch.setitem(study.SCALES, "demo", study.SCALES["demo"]._replace(steps=151))
    with pytest.raises(ValueError, match=r"demo_sp.parquet comes from another scale, .*'steps': 150.*: delete it"):
        study.read("sp", "demo")


def plant(folder, centre):
    """Rows of the demo with parabolas around log2 rates centre(case, depth), rising losses above."""
    scale, rng = study.SCALES["demo"], np.random.default_rng(0)
    (folder / "rows").mkdir()
    for name in study.CASES:
        rows = [
            {"width": w, "depth": d, "learning_rate": 2.0**octave, "seed": seed, "diverged": False,
             "loss": 2.0 + 0.05 * (octave - centre(name, d)) ** 2 + 0.001 * rng.standard_normal()}
            for w, d in scale.shapes for octave in scale.octaves for seed in range(scale.seeds)
        ]  # fmt: skip
        pandas.DataFrame(rows).to_parquet(folder / "rows" / f"demo_{name}.parquet")
        (folder / "rows" / f"demo_{name}.json").write_text(json.dumps(study.identity(name, "demo")))


def test_the_page(folder):
    """sp, which is mup over depth, falls by half an octave a doubling, the others stay; pictures are there."""
    plant(folder, lambda name, depth: -6 - 0.5 * math.log2(depth) * (name in ("sp", "mup")))
    assert page.write() == str(folder / "language.md")
    text = (folder / "language.md").read_text()
    rows = {tuple(line.split(" | ")[:2]): line for line in text.splitlines() if line.startswith("| ")}
    assert re.search(r"depth \| -0\.(4|5)\d \[", rows["| sp = mup, adamw", "depth"])
    assert ", does not transfer" in rows["| sp = mup, adamw", "depth"]
    for name in ("depth_mup, adamw", "completep, adamw", "depth_mup, muon", "depth_ode, muon", "depth_mup nnx, adamw"):
        assert ", transfers, costs at most" in rows[f"| {name}", "depth"]
    for name in (
        "sp, adamw",
        "mup = depth_mup = completep, adamw",
        "depth_mup = depth_ode, muon",
        "depth_mup nnx, adamw",
    ):
        assert ", transfers, costs at most" in rows[f"| {name}", "width"]
    assert len(rows) == 2 + 10 + 1  # two headers, a rule: the same trainings have one row
    for picture in re.findall(r"\]\((images/.*?)\)", text):
        assert (folder / picture).exists(), picture
    assert "Best loss of `completep` against `depth_mup` with adamw, with 95% intervals of paired seeds: " in text


def test_the_committed_page_is_that_of_the_rows(tmp_path, monkeypatch):
    committed = page.PAGE.read_text()
    monkeypatch.setattr(page, "PAGE", tmp_path / "language.md")
    monkeypatch.setattr(page, "IMAGES", tmp_path / "images")
    page.write()
    assert page.PAGE.read_text() == committed


def test_best_losses_are_compared_seed_by_seed():
    """By hand: 10% below at every seed, though seeds differ by more."""
    depth_mup = [np.array([2.0, 3.0, 4.0])] * 2
    completep = [losses * share for losses, share in zip(depth_mup, (1.0, 0.9), strict=True)]
    assert page.compared("completep", completep, "depth_mup", depth_mup, "adamw", (2, 4)).endswith(
        ": -10.0% [-10.0, -10.0] at depth 4."
    )


def test_a_case_without_all_sizes_is_left_out(folder):
    plant(folder, lambda name, depth: -6)
    file = folder / "rows" / "demo_sp.parquet"
    rows = pandas.read_parquet(file)
    rows[rows["depth"] < 16].to_parquet(file)
    assert [c.axis for c in page.curves("sp", "demo")] == ["width"]

"""Several sweeps on one page."""

import html
import json
import re

import numpy as np
import pytest

from depthmup import sweep
from depthmup.report.curves import judge
from depthmup.report.page import write_report
from depthmup.settings import SettingsError, defaults, put
from depthmup.train.workdir import WorkdirError
from depthmup.trials.config_study import ConfigStudy, config_study_from
from depthmup.trials.store import Finished, Store
from tests import tiny
from tests.test_interactive import HOSTILE, needs_chromium, open_page  # noqa: F401 - a fixture
from tests.test_report import GRID, planted


def store(folder, study, rows=None, saved=None):
    """A workdir with these rows; by default all of the plan's."""
    rows = planted(study) if rows is None else rows
    opened = Store(folder, saved or study.identity)
    opened.add([Finished(row) for row in rows.to_dict("records")])
    opened.close()
    return folder


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """Workdirs of two sweeps; the second one has other depths, another schedule and no depth_mup."""
    folder = tmp_path_factory.mktemp("compare")
    one = tiny.study(**GRID)
    two = tiny.study(**{**GRID, "sweep__depths": (3, 6, 12), "sweep__parameterizations": ("mup",)}, schedule="cosine")
    return store(folder / "one", one), store(folder / f"two {HOSTILE.replace('/', '')}", two), one, two


def data_of(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(), re.DOTALL)[1])


def words_of(path):
    """The text of the page, a row of a table in a line."""
    text = re.sub(r"<(script|style).*?</\1>", "", path.read_text(), flags=re.DOTALL).replace("\n", " ")
    text = html.unescape(re.sub(r"<[^>]*>", "", text.replace("<tr>", "\n").replace("<td", " | <td")))
    return "\n".join(re.sub(r" +", " ", line).strip() for line in text.splitlines())


def test_settings_come_back_from_a_workdir():
    study = tiny.study(
        **GRID,
        sweep__axes="model.norm = none, layer; parameterization.alpha = 0.5, 0.75",
        data__augment__scale=(0.5, 1.0),
        clip=2.0,
        loss="mse",
    )
    saved = json.loads(json.dumps(study.identity | {"files of data.data_dir": "abc"}))
    assert config_study_from(saved).identity == study.identity
    vit = ConfigStudy(put(defaults("vit"), {"model.heads": 2}))
    assert config_study_from(vit.identity).identity == vit.identity
    with pytest.raises(SettingsError, match="it is of schema 3, and this is schema"):
        config_study_from({**saved, "schema": 3})
    with pytest.raises(SettingsError, match="not that of a sweep"):
        config_study_from({"model.name": "vit"})


def test_a_page_of_two(sweeps, tmp_path):
    """The same numbers as their own reports, panel by panel, and the settings that differ."""
    first, second, one, two = sweeps
    path = sweep.compare([first, second, first], tmp_path / "new" / "folder")  # a workdir twice is one
    assert path == tmp_path / "new" / "folder" / "compare.html"
    curves = {"A": judge(planted(one), one), "B": judge(planted(two), two)}
    text = words_of(path)
    assert f"A | solid | {first}" in text
    assert f"B | dashed | {second}" in text
    assert 'schedule | "linear" | "cosine"' in text
    assert "sweep.depths | [3, 4, 6, 8, 24] | [3, 6, 12]" in text
    assert "base_width" not in text  # the same in both
    sizes = (3, 4, 6, 8, 12, 24)
    for letter, c in (("A", curves["A"][0]), ("B", curves["B"][0]), ("A", curves["A"][1])):
        of_size = dict(zip(c.result.values, c.result.optimal_lr, strict=True))
        drift = c.result.drift
        words = f"{drift.octaves_per_doubling:+.2f} [{drift.low:+.2f}, {drift.high:+.2f}]"
        cells = [f"{of_size[size]:.3g}" if size in of_size else "\N{EN DASH}" for size in sizes]
        assert " | ".join([letter, c.result.verdict, str(c.result.cost or "\N{EN DASH}"), words, *cells]) in text
    panels = data_of(path)["plots"]["loss_over_depth"]["panels"]
    assert [panel["names"]["parameterization"] for panel in panels] == ["mup", "depth_mup"]
    assert [letter for letter, _, _ in panels[0]["notes"]] == ["A", "B"]
    for line in panels[0]["lines"]:
        c = curves[line["sweep"]][0]
        i = c.result.values.index(float(line["name"]))
        (drawn,) = [mark for mark in line["marks"] if mark["kind"] == "line"]
        assert drawn["x"] == pytest.approx(c.result.learning_rates[i], rel=1e-4)
        means = np.exp(np.log(c.result.losses[i]).mean(axis=1))
        assert min(drawn["y"]) == pytest.approx(np.nanmin(means), rel=1e-4)
    places = {(line["sweep"], line["name"]): line["place"] for line in panels[0]["lines"]}
    assert places["A", "6"] == places["B", "6"] != places["A", "4"]


def test_the_same_settings(sweeps, tmp_path):
    first, _, one, _ = sweeps
    path = sweep.compare([first, store(tmp_path / "again", one)])
    assert path == first / "compare.html"
    assert "All settings are the same." in words_of(path)


def test_an_unfinished_sweep_counts_with_its_finished_sizes(sweeps, tmp_path):
    first, _, one, _ = sweeps
    rows = planted(one)
    workdir = store(tmp_path / "part", one, rows[rows["depth"].isin((3, 8)) | (rows["seed"] == 0)])
    panels = data_of(sweep.compare([workdir, first]))["plots"]["loss_over_depth"]["panels"]
    assert {line["name"] for line in panels[0]["lines"] if line["sweep"] == "A"} == {"3", "8"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda one, to: to, "holds no settings.json: give the --workdir of main.py sweep"),
        (lambda one, to: store(to, one, planted(one)[:0]), "holds no rows of a sweep"),
        (lambda one, to: store(to, one, planted(one)[:5]), "has fewer than two finished sizes"),
        (lambda one, to: store(to, one, saved={"learning_rate": 1}), "cannot be used: it is not that of a sweep"),
        (lambda one, to: store(to, one, saved=one.identity | {"schema": 3}), "it is of schema 3"),
        (lambda one, to: store(to, one, saved=one.identity | {"epochs": "x"}), "epochs must be float"),
    ],
)
def test_workdirs_that_cannot_be_compared(sweeps, tmp_path, wrong, message):
    with pytest.raises(WorkdirError, match=re.escape(message)):
        sweep.compare([sweeps[0], wrong(sweeps[2], tmp_path / "wrong")])
    assert not (tmp_path / "compare.html").exists()


def test_one_workdir_is_not_enough(sweeps):
    with pytest.raises(ValueError, match="compare takes 2 to 26 workdirs of sweeps, got 1: compare DIR DIR"):
        sweep.compare([sweeps[0], sweeps[0]])


@needs_chromium
@pytest.mark.parametrize("width", [400, 1200])
def test_in_a_browser(sweeps, tmp_path, open_page, width):  # noqa: F811
    """A sweep is switched off, and the name of a folder does nothing."""
    open_page.open(sweep.compare(sweeps[:2], tmp_path), width=width)
    canvas = "document.querySelector('#loss_over_depth .canvas, .canvas')"
    open_page.wait(f"{canvas}._fullLayout")
    labels = "[...document.querySelectorAll('.plot label')]"
    open_page.run(f"{labels}.find(label => label.textContent === 'B').querySelector('input').click()")
    shown = open_page.run(
        f"{canvas}.data.map(({{meta, visible, line}}) => [meta.sweep, meta.kind, visible, line?.dash])"
    )
    assert {(letter, visible, dash) for letter, kind, visible, dash in shown if kind == "line"} == {
        ("A", True, "solid"),
        ("B", False, "dash"),
    }
    assert open_page.run("window.hacked === undefined")
    assert open_page.run("document.documentElement.scrollWidth") == width
    assert open_page.errors == []


def test_environments_that_are_mixed(sweeps, tmp_path):
    """Rows of two versions of jax: the page of a sweep and that of several say so."""
    _, _, one, _ = sweeps
    rows = planted(one)
    mixed = rows.assign(environment=["jax 1" if i % 3 else "jax 2" for i in range(len(rows))])
    store(tmp_path / "mixed", one, mixed)
    store(tmp_path / "plain", one, rows.assign(environment="jax 1"))
    words = words_of(sweep.compare([tmp_path / "plain", tmp_path / "mixed"], tmp_path))
    few = sum(mixed["environment"] == "jax 2")
    assert re.search(
        rf'environment \| \["jax 1"\] \| \["{len(rows) - few} trials: jax 1", "{few} trials: jax 2"\]', words
    )
    table = sweep.load(tmp_path / "mixed")
    page = words_of(write_report(judge(table, one), table, one, tmp_path, "a command"))
    assert "Trials of several environments are mixed" in page
    assert f"{few} trials: jax 2" in page
    plain = sweep.load(tmp_path / "plain")
    assert "mixed" not in words_of(write_report(judge(plain, one), plain, one, tmp_path, "a command"))

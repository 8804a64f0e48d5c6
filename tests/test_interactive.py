"""The plots of the report: their numbers, the trials behind their points, and what a browser makes of them."""

import base64
import dataclasses
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from absl import flags

from depthmup import command
from depthmup.files import digest
from depthmup.report import interactive, page
from depthmup.report.curves import judge
from depthmup.report.learning_curves import LearningCurves
from depthmup.settings import flat, from_config
from depthmup.trials.plan import trials
from depthmup.trials.store import Finished, Store
from depthmup.trials.study import SCHEMA
from tests import browser, tiny
from tests.test_report import GRID, planted

STEPS = 100  # of a learning curve
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'><b>bold</b>$x_{$[/b]"
needs_chromium = pytest.mark.skipif(not browser.CHROMIUM, reason="there is no chromium to open the page in")


def losses_of(row):
    return (row["loss"] if not row["diverged"] else 3.0) + np.exp(-np.arange(1, STEPS + 1) / 8)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """(study, rows, curves, workdir with their learning curves); the last trial has none."""
    study, workdir = tiny.study(**GRID), tmp_path_factory.mktemp("sweep")
    rows = planted(study)
    store, step = Store(workdir, study.identity), np.arange(1, STEPS + 1, dtype=np.int32)
    group = []
    for row in rows.to_dict("records"):
        values = losses_of(row).astype(np.float32)
        group.append(Finished(row, {"step": step, "loss": values, "grad_norm": values}))
    store.add([*group[:-1], Finished(group[-1].row)])
    store.close()
    return study, rows, judge(rows, study), workdir


@pytest.fixture(scope="module")
def found(sweep):
    study, _, curves, workdir = sweep
    trials = interactive.trials(curves, study, LearningCurves(workdir), "python main.py")
    keys = trials.pop("keys")
    return keys, trials, interactive.plots(curves, keys)


def settings_from(words):
    """The settings of a command line, as main.py reads them."""
    before = set(flags.FLAGS)
    try:
        command.parse(["main.py", *words])
        return from_config(flags.FLAGS.config)
    finally:
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)
        flags.FLAGS.unparse_flags()


def command_of(trials, i):
    """As report.js puts it together."""
    words = [trials["command"], *(s["flags"][s["of"][i]] for s in trials["settings"].values())]
    return shlex.split(" ".join(filter(None, words)))


def test_points_are_means_over_their_trials(sweep, found):
    _, rows, curves, _ = sweep
    keys, _, plots = found
    rows = rows.set_index("key")
    panels = plots["loss_over_depth"]["panels"]
    assert [panel["names"]["parameterization"] for panel in panels] == ["mup", "depth_mup"]
    seen = 0
    for panel, c in zip(panels, curves, strict=True):
        assert panel["says"] == [["", f"{c.result.verdict}: {c.result.reason}",
                                  interactive.VERDICT_COLORS[c.result.verdict]]]  # fmt: skip
        for trace in panel["traces"]:
            kind = trace["meta"]["kind"]
            for j, (x, y) in enumerate(zip(trace["x"], trace["y"], strict=True)):
                if kind == "optimum":
                    i = c.result.values.index(float(trace["meta"]["size"]))
                    assert x == pytest.approx(np.log2(c.result.optimal_lr[i]), rel=1e-4)
                    continue
                own = rows.loc[[keys[trial] for trial in trace["trials"][j]]]
                assert (own["depth"] == int(trace["meta"]["size"])).all()
                assert (own["parameterization"] == c.parameterization).all()
                assert np.log2(own["learning_rate"]).tolist() == pytest.approx([x] * len(own))
                values = np.where(own["diverged"], c.chance, own["loss"].fillna(np.inf)).clip(max=c.chance)
                assert y == pytest.approx(np.exp(np.log(values).mean()), rel=1e-4)
                if kind == "mean":
                    assert trace["customdata"][j] == (pytest.approx(2.0**x, rel=1e-4), 3, own["diverged"].sum())
                seen += len(own)
    assert seen == 2 * len(rows)


def test_optima_have_their_intervals(sweep, found):
    _, _, curves, _ = sweep
    (panel,) = found[2]["optimum_over_depth"]["panels"]
    for c, trace in zip(curves, panel["traces"], strict=True):
        assert trace["meta"]["parameterization"] == c.parameterization
        assert trace["customdata"] == c.result.values
        for o, y, above, below in zip(c.result.optima, trace["y"], trace["error_y"]["array"],
                                      trace["error_y"]["arrayminus"], strict=True):  # fmt: skip
            assert 2.0 ** np.array([y, y + above, y - below]) == pytest.approx(
                [o.learning_rate, o.high, o.low], rel=1e-3
            )


def test_learning_curves_are_thinned(sweep, found):
    """To 64 means, whose mean is that of the curve; a curve that is not there has no points."""
    _, rows, _, workdir = sweep
    keys, trials, _ = found
    packed = np.frombuffer(base64.b64decode(trials["curves"]), "<i2").reshape(len(keys), interactive.POINTS)
    assert (packed[keys.index(rows["key"].iloc[-1])] == interactive.MISSING).all()
    assert (trials["steps"][keys.index(rows["key"].iloc[-1])], trials["steps"][0]) == (0, STEPS)
    row = rows.set_index("key").loc[keys[7]]
    losses = 2.0 ** (packed[7] / interactive.SCALE)
    ends = np.append(np.arange(1, 64) * STEPS // 64, STEPS)
    means = [part.mean() for part in np.split(losses_of(row), ends[:-1])]
    assert losses == pytest.approx(means, rel=1e-3)
    steps, short = LearningCurves(workdir).thinned([keys[7]], 128)
    assert (steps.tolist(), np.isfinite(short).sum()) == ([STEPS], STEPS)
    assert short[0, :STEPS] == pytest.approx(losses_of(row), rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")
def test_the_command_of_a_trial_is_that_of_the_trial():
    """Read as main.py reads it, it has all settings that decide the trial's result: its key is the same."""
    axes = "parameterization.alpha = 0.5, 0.75; model.norm = none, layer; data.batch_size = 32, 64; clip = None, 2.5"
    study = tiny.study(**{**GRID, "sweep__depths": (2, 4)}, sweep__axes=axes, model__use_bias=True,
                       data__augment__scale=(0.5, 1.0), loss="mse", data__data_dir="/a b/$c'd")  # fmt: skip
    rows, of_key = planted(study), {trial.key: trial for trial in trials(study)}
    found = interactive.trials(judge(rows, study), study, LearningCurves(Path("nowhere")), "x")
    assert len(found["keys"]) == len(of_key)
    for i in range(0, len(of_key), 97):
        program, verb, *words = command_of(found, i)
        assert (program, verb) == ("x", "train")
        read = settings_from(words)
        assert digest({"schema": SCHEMA, **flat(read)}) == found["keys"][i]
        assert read.data.data_dir == "/a b/$c'd"
    assert found["curves"] == ""


def test_commands_begin_as_the_sweep_did():
    assert page._program("python main.py sweep --config=a") == "python main.py"
    assert page._program("depthmup --config=a sweep") == "depthmup"
    assert page._program("") == "python -m depthmup"


def written(sweep, folder, variant=""):
    study, rows, curves, workdir = sweep
    (folder / "groups").symlink_to(workdir / "groups")
    curves = [dataclasses.replace(c, variant=variant) for c in curves]
    return page.write(curves, rows, study, folder, f"python main.py sweep --config='{variant}'")


def test_names_that_contain_html_are_data(sweep, tmp_path):
    text = written(sweep, tmp_path, HOSTILE).read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    panels = json.loads(data)["plots"]["loss_over_depth"]["panels"]
    assert {panel["names"]["variant"] for panel in panels} == {HOSTILE}
    assert not re.search("[<>&]", data)
    drawn = json.dumps([[panel["traces"], panel["shapes"]] for panel in panels])
    assert "bold" not in drawn  # Plotly would read HTML there


@pytest.fixture(scope="module")
def open_page(tmp_path_factory):
    with browser.opened(tmp_path_factory.mktemp("profile")) as found:
        yield found


# Where a point of a panel is in the window.
PLACE = """(() => {
  const canvas = document.querySelectorAll('#loss_over_depth .canvas')[%d], {xaxis, yaxis} = canvas._fullLayout;
  const {x, y} = canvas.getBoundingClientRect(), trace = canvas.data[%d];
  return [x + xaxis._offset + xaxis.d2p(trace.x[%d]), y + yaxis._offset + yaxis.d2p(trace.y[%d])];
})()"""


@needs_chromium
def test_in_a_browser(sweep, found, open_page, tmp_path):
    """Offline and without an error: hover and click show what is in the rows, and names do nothing."""
    _, rows, _, _ = sweep
    keys, trials, plots = found
    path = written(sweep, tmp_path, HOSTILE)
    open_page.open(path)
    open_page.wait("document.querySelectorAll('#loss_over_depth .main-svg').length >= 4")
    assert not open_page.run("[...document.querySelectorAll('.still')].some(still => still.offsetHeight)")
    labels = open_page.run("[...document.querySelectorAll('#loss_over_depth .ytick text')].map(t => t.textContent)")
    low, high = 10 ** np.array(plots["loss_over_depth"]["y"]["range"])
    assert labels
    assert all(low <= float(label) <= high for label in labels), labels
    traces = plots["loss_over_depth"]["panels"][0]["traces"]
    highest = max(i for i, trace in enumerate(traces) if trace["meta"]["kind"] == "mean")  # drawn over the others
    shown = "document.querySelector('.hoverlayer').textContent"
    for i, j, depth in (0, 9, 3), (highest, -1, 24):
        trace = traces[i]
        own = rows.set_index("key").loc[[keys[trial] for trial in trace["trials"][j]]]
        rate, bad, place = own["learning_rate"].iloc[0], own["diverged"].sum(), j % len(trace["x"])
        open_page.mouse(*open_page.run(PLACE % (0, i, place, place)))
        open_page.wait(f"{shown}.includes('seeds: 3, diverged: {bad}')")
        assert open_page.run(shown) == (
            f"depth {depth}learning rate {rate:#.4g} = 2^{np.log2(rate):.2f}"
            f"mean loss {trace['y'][j]:#.4g}seeds: 3, diverged: {bad}"
        )
    trace = traces[0]
    place = open_page.run(PLACE % (0, 0, 9, 9))
    open_page.mouse(*place)
    open_page.wait(f"{shown}.includes('depth 3')")
    open_page.mouse(*place, click=True)
    open_page.wait("document.querySelector('#trial .main-svg')")
    trial = trace["trials"][9][0]
    shown = open_page.run("document.getElementById('trial').innerText")
    assert f"seed 0: loss {trials['loss'][trial]}" in shown
    assert shlex.join(command_of(trials, trial)) == open_page.run("document.querySelector('#trial pre').textContent")
    drawn = open_page.run("document.querySelector('#trial .canvas').data.map(({x, y}) => [x.at(-1), y.at(-1)])")
    assert drawn == [[STEPS, pytest.approx(losses_of(rows.set_index("key").loc[keys[i]])[-2:].mean(), rel=1e-3)]
                     for i in (*trace["trials"][9][1:], trial)]  # fmt: skip
    open_page.run("document.querySelector('#trial button').click()")
    visible = "document.querySelector('#loss_over_depth .canvas').data.map(({visible}) => visible)"
    before = open_page.run(visible)
    assert before == [trace["meta"]["kind"] != "seeds" for trace in traces]
    labels = "[...document.querySelectorAll('#loss_over_depth label')]"
    for label in ("mup", "24", "each"):
        open_page.run(f"{labels}.find(label => label.textContent === '{label}').querySelector('input').click()")
    assert open_page.run("[...document.querySelectorAll('#loss_over_depth .panel')].map(({hidden}) => hidden)") == [
        True,
        False,
    ]
    second = "document.querySelectorAll('#loss_over_depth .canvas')[1].data.map(({visible}) => visible)"
    kinds = [trace["meta"] for trace in plots["loss_over_depth"]["panels"][1]["traces"]]
    assert open_page.run(second) == [meta["size"] != "24" for meta in kinds]
    assert open_page.run("window.hacked === undefined && !document.querySelector('b')?.textContent.includes('bold')")
    assert {re.match("file:|data:image/png", request)[0] for request in open_page.requests} == {
        "file:",
        "data:image/png",
    }
    assert [request for request in open_page.requests if request.startswith("file:")] == [path.as_uri()]
    assert open_page.errors == []


@needs_chromium
@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_is_wider_than_the_window(sweep, open_page, tmp_path, width):
    open_page.open(written(sweep, tmp_path, HOSTILE), width=width)
    open_page.wait("document.querySelector('.main-svg')")
    assert open_page.run("document.documentElement.scrollWidth") == width
    for canvas in open_page.run(
        "[...document.querySelectorAll('.panel')].map(panel => panel.getBoundingClientRect().right)"
    ):
        assert canvas <= width


@needs_chromium
def test_without_scripts_the_pictures_are_there(sweep, open_page, tmp_path):
    open_page("Emulation.setScriptExecutionDisabled", value=True)
    try:
        open_page("Page.navigate", url=written(sweep, tmp_path).as_uri())
        end = "document.querySelectorAll('.still').length"
        open_page.wait(f"document.readyState === 'complete' && {end}")
        assert open_page.run("[...document.querySelectorAll('.still')].every(still => still.offsetHeight)")
        assert not open_page.run("[...document.querySelectorAll('.plot')].some(plot => plot.offsetHeight)")
    finally:
        open_page("Emulation.setScriptExecutionDisabled", value=False)

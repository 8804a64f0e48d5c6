"""The plots of the report: their numbers, the trials behind their points, and what a browser makes of them."""

import base64
import dataclasses
import json
import re
import shlex
import types
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from absl import flags

from depthmup import cli_flags
from depthmup.cli.arguments import parse_command
from depthmup.files import digest
from depthmup.fit import marks
from depthmup.fit.picture import draw
from depthmup.report import interactive, page, panels, words
from depthmup.report.curves import judge
from depthmup.report.learning_curves import LearningCurves
from depthmup.settings import LEARNING_RATE, flat, from_config
from depthmup.trials.model_study import ModelStudy
from depthmup.trials.plan import grid_trials
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
def plotted(sweep):
    study, _, curves, workdir = sweep
    trials = interactive.clicked_trials(curves, study, LearningCurves(workdir), "python main.py")
    keys = trials.pop("keys")
    return keys, trials, interactive.plots(panels.pictures(curves, trials=keys))


def settings_from(words):
    """The settings of a command line, as main.py reads them."""
    before = set(flags.FLAGS)
    try:
        parse_command(["main.py", *words])
        return from_config(flags.FLAGS.config)
    finally:
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)
        flags.FLAGS.unparse_flags()


def command_of(trials, i):
    """As report.js puts it together."""
    words = [trials["command"], *(s["flags"][s["of"][i]] for s in trials["settings"].values())]
    return shlex.split(" ".join(filter(None, words)))


def marks_of(plot, panel, name):
    """{kind: mark} of the line with this name."""
    (line,) = [line for line in plot["panels"][panel]["lines"] if line["name"] == name]
    return {mark["kind"]: mark for mark in line["marks"]}


def test_points_are_means_over_their_trials(sweep, plotted):
    _, rows, curves, _ = sweep
    keys, _, plots = plotted
    rows = rows.set_index("key")
    plot, seen = plots["loss_over_depth"], 0
    assert [panel["names"]["parameterization"] for panel in plot["panels"]] == ["mup", "depth_mup"]
    for i, c in enumerate(curves):
        assert plot["panels"][i]["notes"] == [["", c.result.verdict, c.result.price]]
        for size in c.result.values:
            marks = marks_of(plot, i, f"{size:g}")
            for kind in ("line", "seeds"):
                mark = marks[kind]
                for x, y, about, behind in zip(*(mark[name] for name in ("x", "y", "about", "trials")), strict=True):
                    group = rows.loc[[keys[trial] for trial in behind]]
                    assert (group["depth"] == size).all()
                    assert (group["parameterization"] == c.parameterization).all()
                    assert group["learning_rate"].tolist() == pytest.approx([x] * len(group), rel=1e-4)
                    values = np.where(group["diverged"], c.chance, group["loss"].fillna(np.inf)).clip(max=c.chance)
                    assert y == pytest.approx(np.exp(np.log(values).mean()), rel=1e-4)
                    if kind == "line":
                        assert about.endswith(f"<br>seeds: 3, diverged: {group['diverged'].sum()}")
                    seen += len(group)
    assert seen == 2 * len(rows)


def test_the_band_the_star_and_the_edge(sweep, plotted):
    """Both pictures have them: they are drawn of the same marks."""
    _, _, curves, _ = sweep
    plot = plotted[2]["loss_over_depth"]
    drawn = draw(panels.losses(curves)).axes
    for i, c in enumerate(curves):
        edges = 0
        for j, size in enumerate(c.result.values):
            marks, log, o = marks_of(plot, i, f"{size:g}"), c.result.log_losses(j), c.result.optima[j]
            spread = np.exp(log.mean(axis=1) + np.array([[-1], [1]]) * log.std(axis=1))
            assert np.array([marks["band"]["low"], marks["band"]["high"]]) == pytest.approx(spread, rel=1e-4)
            assert marks["best"]["x"] == [pytest.approx(o.learning_rate, rel=1e-4)]
            assert ("edge" in marks) == bool(o.edge.learning_rate)
            if o.edge.learning_rate:
                assert marks["edge"]["x"] == [pytest.approx(o.edge.learning_rate, rel=1e-4)]
                edges += 1
        assert edges
        assert len(drawn[i].collections) == len(c.result.values)  # bands
        kinds = [line.get_marker() for line in drawn[i].lines]
        assert (kinds.count("*"), kinds.count("|")) == (len(c.result.values), edges)


def test_optima_have_their_intervals(sweep, plotted):
    _, _, curves, _ = sweep
    plot = plotted[2]["optimum_over_depth"]
    assert plot["ticks"] == curves[0].result.values
    for c in curves:
        marks = marks_of(plot, 0, c.parameterization)
        mark, law = marks["optima"], c.laws.power_law
        assert mark["x"] == c.result.values
        assert mark["y"] == pytest.approx(c.result.optimal_lr, rel=1e-4)
        for name in ("low", "high"):
            assert mark[name] == pytest.approx([getattr(o, name) for o in c.result.optima], rel=1e-4)
        assert marks["fit"]["y"] == pytest.approx(law(np.array(marks["fit"]["x"])), rel=1e-3)
        assert {"band", "edges"} <= marks.keys()


def test_marks_of_both_painters():
    """Each kind has a style in Matplotlib's and in Plotly's."""
    script = (Path(interactive.__file__).parent / "report.js").read_text()
    styles = script.partition("const STYLES = {")[2].partition("\n  };")[0]
    assert set(re.findall(r"^    (\w+): \(", styles, re.M)) == set(get_args(marks.Kind))
    assert set(marks.STYLES) | {"band", "seeds", "optima"} == set(get_args(marks.Kind))


def test_learning_curves_are_thinned(sweep, plotted):
    """To 64 means, whose mean is that of the curve; a curve that is not there has no points."""
    _, rows, _, workdir = sweep
    keys, trials, _ = plotted
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
    rows, of_key = planted(study), {trial.key: trial for trial in grid_trials(study)}
    shown = interactive.clicked_trials(judge(rows, study), study, LearningCurves(Path("nowhere")), "x")
    assert len(shown["keys"]) == len(of_key)
    for i in range(0, len(of_key), 97):
        program, verb, *words = command_of(shown, i)
        assert (program, verb) == ("x", "train")
        read = settings_from(words)
        assert digest({"schema": SCHEMA, **flat(read)}) == shown["keys"][i]
        assert read.data.data_dir == "/a b/$c'd"
    assert shown["curves"] == ""


def test_commands_begin_as_the_sweep_did():
    assert cli_flags.program("python main.py sweep --config=a") == "python main.py"
    assert cli_flags.program("depthmup --config=a sweep") == "depthmup"
    assert cli_flags.program("") == "python -m depthmup"


@pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")
def test_what_decides_and_what_is_next(sweep):
    """The commands are read as main.py reads them; the flags that were given before are replaced."""
    transfers = dataclasses.replace(sweep[2][1], parameterization="depth_ode")
    study = tiny.study(**{**GRID, "sweep__seeds": 2})
    noisy = judge(planted(study, noise=0.3), study)
    undecided = [c for c in noisy if c.result.verdict == "undecided"]
    most = max(need.seeds for c in undecided for need in c.result.needs if need.kind == "seeds")
    command = "python main.py sweep --config=digits --config.sweep.until planned --yes --shard=0/1 --workdir=a"
    text = words.next_steps([*undecided, transfers], study, command)
    head, decide, then, grow = text.splitlines()
    assert (head, then) == ("Next: decide what is undecided", "Next: train the large network with what was tuned")
    assert decide.startswith("  python main.py sweep --config=digits --workdir=a --config.sweep.until=decided")
    read = settings_from(shlex.split(decide)[2:])
    assert read.sweep.until == "decided"
    assert most <= read.sweep.max_seeds < 2 * max(most, 24)
    assert grow == (
        "  python main.py grow --config=digits --workdir=a --config.parameterization.name=depth_ode "
        "--width=16 --depth=24"
    )
    spent = tiny.study(**{**GRID, "sweep__seeds": 2}, sweep__until="decided")
    edge = undecided[0].result.needs[0]._replace(kind="lower")
    short = dataclasses.replace(undecided[0], result=undecided[0].result._replace(needs=[edge]))
    low, high = spent.sweep.log2_learning_rates["sgd"]
    assert words.decides([short], spent, command) == f"'--config.sweep.log2_learning_rates.sgd=({low - 4}, {high})'"
    assert words.decides([short], spent, "") == f"config.sweep.log2_learning_rates.sgd = ({low - 4}, {high})"
    assert words.decides([transfers], study, command) == ""


def test_what_decides_and_what_is_next_from_python():
    """Arguments of m.sweep, and the call of another shape, as a user would write them."""
    sweep = dataclasses.replace(tiny.study().sweep, per_octave=2, parameterizations=("sp", "mup"))
    study = types.SimpleNamespace(sweep=sweep)
    changes = {"until": "decided", "max_seeds": 8, "log2_learning_rates.adam": (-8, -2)}
    arguments = 'until="decided", max_seeds=8, learning_rates=2.0 ** numpy.arange(-8, -2 + .01, 0.5)'
    assert ModelStudy.in_words(study, changes, flags=False) == arguments
    values = {LEARNING_RATE: 0.012345, "optimizer.weight_decay": 0.1}
    assert ModelStudy.call(study, 64, 8, values, "adamw") == 'm.at(64, 8).optimizer("adamw", 0.0123, weight_decay=0.1)'
    of_another = ModelStudy.call(study, 64, 8, {LEARNING_RATE: 0.5}, "sgd", "mup")
    assert of_another == 'm.under("mup").at(64, 8).optimizer("sgd", 0.5)'


def written(sweep, folder, variant=""):
    study, rows, curves, workdir = sweep
    (folder / "groups").symlink_to(workdir / "groups")
    curves = [dataclasses.replace(c, variant=variant) for c in curves]
    return page.write_report(curves, rows, study, folder, f"python main.py sweep --config='{variant}'")


def test_names_that_contain_html_are_data(sweep, tmp_path):
    text = written(sweep, tmp_path, HOSTILE).read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    panels = json.loads(data)["plots"]["loss_over_depth"]["panels"]
    assert {panel["names"]["variant"] for panel in panels} == {HOSTILE}
    assert not re.search("[<>&]", data)
    drawn = json.dumps([line["marks"] for panel in panels for line in panel["lines"]])
    assert "bold" not in drawn  # Plotly would read HTML there


@pytest.fixture(scope="module")
def open_page(tmp_path_factory):
    with browser.opened(tmp_path_factory.mktemp("profile")) as window:
        yield window


CANVAS = "document.querySelectorAll('#loss_over_depth .canvas')[%d]"
# Where a point of a line is in the window.
PLACE = """(() => {
  const canvas = CANVAS, {xaxis, yaxis} = canvas._fullLayout;
  const {x, y} = canvas.getBoundingClientRect();
  const trace = canvas.data.find(({meta}) => meta.kind === 'line' && meta.name === '%s');
  return [x + xaxis._offset + xaxis.d2p(trace.x.at(%d)), y + yaxis._offset + yaxis.d2p(trace.y.at(%d))];
})()""".replace("CANVAS", CANVAS % 0)


@needs_chromium
def test_in_a_browser(sweep, plotted, open_page, tmp_path):
    """Offline and without an error: hover and click show what is in the rows, and names do nothing."""
    _, rows, _, _ = sweep
    keys, trials, plots = plotted
    path, plot = written(sweep, tmp_path, HOSTILE), plots["loss_over_depth"]
    open_page.open(path, height=1000)
    open_page.wait("document.querySelectorAll('#loss_over_depth .main-svg').length >= 4")
    assert not open_page.run("[...document.querySelectorAll('.still')].some(still => still.offsetHeight)")
    for axis in "xy":
        low, high = plot["panels"][0][axis]
        ticks = f"[...document.querySelectorAll('#loss_over_depth .{axis}tick text')].map(t => t.textContent)"
        labels = open_page.run(ticks)
        assert labels
        assert all(low <= float(label) <= high for label in labels), labels
    shown = "document.querySelector('.hoverlayer').textContent"
    for j, depth in (9, "3"), (-1, "24"):
        line = marks_of(plot, 0, depth)["line"]
        group = rows.set_index("key").loc[[keys[trial] for trial in line["trials"][j]]]
        rate, bad = group["learning_rate"].iloc[0], group["diverged"].sum()
        open_page.mouse(*open_page.run(PLACE % (depth, j, j)))
        open_page.wait(f"{shown}.includes('seeds: 3, diverged: {bad}')")
        text = f"learning rate {rate:.4g}mean loss {line['y'][j]:.4g}seeds: 3, diverged: {bad}"
        assert open_page.run(shown) == f"depth {depth}{text}"
    line = marks_of(plot, 0, "3")["line"]
    place = open_page.run(PLACE % ("3", 9, 9))
    open_page.mouse(*place)
    open_page.wait(f"{shown}.includes('depth 3')")
    open_page.mouse(*place, click=True)
    open_page.wait("document.querySelector('#trial .main-svg')")
    trial = line["trials"][9][0]
    shown = open_page.run("document.getElementById('trial').innerText")
    assert f"seed 0: loss {trials['loss'][trial]}" in shown
    assert shlex.join(command_of(trials, trial)) == open_page.run("document.querySelector('#trial pre').textContent")
    drawn = open_page.run("document.querySelector('#trial .canvas').data.map(({x, y}) => [x.at(-1), y.at(-1)])")
    assert drawn == [[STEPS, pytest.approx(losses_of(rows.set_index("key").loc[keys[i]])[-2:].mean(), rel=1e-3)]
                     for i in (*line["trials"][9][1:], trial)]  # fmt: skip
    open_page.run("document.querySelector('#trial button').click()")
    kinds = f"{CANVAS % 0}.data.map(({{meta, visible}}) => [meta.kind, visible])"
    assert {(kind, visible) for kind, visible in open_page.run(kinds) if not visible} == {("seeds", False)}
    labels = "[...document.querySelectorAll('#loss_over_depth label')]"
    for label in ("mup", "24", "each"):
        open_page.run(f"{labels}.find(label => label.textContent === '{label}').querySelector('input').click()")
    hidden = open_page.run("[...document.querySelectorAll('#loss_over_depth .panel')].map(({hidden}) => hidden)")
    assert hidden == [True, False]
    shown = open_page.run(f"{CANVAS % 1}.data.map(({{meta, visible}}) => [meta.name, visible])")
    assert all(visible == (name != "24") for name, visible in shown)
    assert open_page.run("window.hacked === undefined && !document.querySelector('b')?.textContent.includes('bold')")
    assert {re.match("file:|data:image/png", request)[0] for request in open_page.requests} == {
        "file:",
        "data:image/png",
    }
    assert [request for request in open_page.requests if request.startswith("file:")] == [path.as_uri()]
    assert open_page.errors == []


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_answer_and_the_picture_are_seen_at_once(sweep, open_page, tmp_path, scheme):
    """In a window of 1280 x 800, in both color schemes: letters and lines stand out from what is behind them."""
    open_page("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    try:
        open_page.open(written(sweep, tmp_path), width=1280, height=800)
        open_page.wait("document.querySelectorAll('#loss_over_depth .main-svg').length >= 4")
        assert open_page.run("document.querySelector('.panels').getBoundingClientRect().bottom") < 800
        answer = open_page.run("document.querySelector('.answer').innerText")
        assert "transfers" in answer
        style = "getComputedStyle(document.querySelector('%s'))"
        colors = [f"{style % 'body'}.{name}" for name in ("color", "backgroundColor")]
        parts = (".ytick text", "fill"), (".xgrid", "stroke"), (".lines .js-line", "stroke")
        colors += [f"{style % f'#loss_over_depth {part}'}.{name}" for part, name in parts]
        text, page, *drawn = (
            np.mean([int(part) for part in re.findall(r"\d+", open_page.run(color))[:3]]) for color in colors
        )
        assert (page > 200) == (scheme == "light")
        assert all(abs(color - page) > far for color, far in zip((text, *drawn), (150, 150, 20, 60), strict=True))
    finally:
        open_page("Emulation.setEmulatedMedia", features=[])


@needs_chromium
@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_is_wider_than_the_window(sweep, open_page, tmp_path, width):
    """Also what is folded at first: no cell is cut, and nothing must be scrolled to the side."""
    open_page.open(written(sweep, tmp_path, HOSTILE), width=width)
    open_page.wait("document.documentElement.classList.contains('live')")
    open_page.run("document.querySelectorAll('details').forEach(folded => folded.open = true)")
    assert open_page.run("document.documentElement.scrollWidth") == width
    boxes = "[...document.querySelectorAll('.panel, td, code, pre')]"
    assert open_page.run(f"{boxes}.every(box => box.getBoundingClientRect().right <= innerWidth)")
    assert open_page.run(f"{boxes}.every(box => box.scrollWidth <= Math.max(box.clientWidth, box.offsetWidth))")


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

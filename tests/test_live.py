"""report.html while its sweep is running."""

import re

import pytest

from depthmup import sweep
from depthmup.report import live, page, words
from depthmup.report.curves import finished, judge
from depthmup.train.stop import Stopped
from depthmup.trials.progress import Progress
from tests import tiny
from tests.test_interactive import needs_chromium, open_page  # noqa: F401 - a fixture
from tests.test_report import GRID, planted

DEPTHS = (3, 4, 6, 8, 24)


@pytest.fixture(scope="module")
def rows():
    return {row["key"]: row for row in planted(tiny.study(**GRID)).to_dict("records")}


@pytest.fixture
def progress():
    result = Progress(silent=True)
    result.expect({"a": 30.0, "b": 10.0}, measured=True)
    result.running("a", "a group", 0.0)
    result.finished("a", 0)
    return result


def part(rows, *depths, but=0):
    """The rows of some depths, but for the last ones."""
    kept = {key: row for key, row in rows.items() if row["depth"] in depths}
    return dict(list(kept.items())[: len(kept) - but])


def test_sizes_are_judged_when_all_of_their_trials_are_there(rows):
    study = tiny.study(**GRID)
    table, narrowed = finished({**part(rows, 3, 8), **part(rows, 4, but=1), "of another sweep": {}}, study)
    assert (narrowed.sweep.depths, narrowed.sweep.widths) == ((3, 8), ())
    assert set(table["depth"]) == {3, 8}
    assert len(table) == len(part(rows, 3, 8))
    assert finished(part(rows, 4, but=1), study) is None
    assert finished(rows, study)[1] == study
    both = tiny.study(**{**GRID, "sweep__depths": (2, 4), "sweep__widths": (16, 8), "model__depth": 2})
    one = {row["key"]: row for row in planted(both).to_dict("records") if row["width"] == 16}
    assert (finished(one, both)[1].sweep.depths, finished(one, both)[1].sweep.widths) == ((2, 4), (16,))


def test_an_adaptive_sweep_is_judged_where_searches_have_ended(rows):
    """At the sizes where all curves have ended, by the trials that they asked for; in the end as a whole."""
    study = tiny.study(**GRID, sweep__adaptive=True)
    assert finished({}, study) is None
    table, judged = finished(part(rows, 3), study)
    assert (judged.sweep.depths, set(table["depth"])) == ((3,), {3})
    table, judged = finished({**part(rows, 3, 4), **part(rows, 6, but=len(part(rows, 6)) // 2)}, study)
    assert (judged.sweep.depths, set(table["depth"])) == ((3, 4), {3, 4})
    assert len(table) < len(part(rows, 3, 4))
    table, judged = finished(rows, study)
    assert judged == study
    assert len(table) < len(rows)


def test_each_new_verdict_is_said_once(rows):
    study = tiny.study(**GRID)
    first, more = (judge(*finished(part(rows, *depths), study)) for depths in ((3, 4), (3, 4, 6, 8)))
    assert {c.result.verdict for c in first} == {"transfers"}
    titles = ", ".join(f"{c.title} transfers" for c in first)
    assert words.news(first, []) == f"depth 3 to 4: {titles}"
    assert words.news(first, first) == ""
    changed = [c for c in more if c.result.verdict != "transfers"]
    assert words.news(more, first) == f"depth 3 to 8: {', '.join(f'{c.title} {c.result.verdict}' for c in changed)}"
    assert changed


def test_the_page_follows_the_sweep(rows, progress, tmp_path, monkeypatch):
    """What is known so far; no more often than it may; the last one is that of a finished sweep."""
    now, lines = [100.0], []
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "say", lines.append)
    study, path = tiny.study(**GRID), tmp_path / "report.html"
    report = live.LiveReport(study, tmp_path, "main.py sweep")
    report({}, progress)
    text = path.read_text()
    assert "Verdicts come when two sizes are finished." in text
    assert '<progress value="0.75">' in text
    assert "groups: 1 done, 0 running, 1 to go" in text
    assert '<meta http-equiv="refresh"' in text
    now[0] += live.EVERY - 1
    report(part(rows, 3, 4), progress)
    assert path.read_text() == text
    now[0] += 2
    report(part(rows, 3, 4, 8, but=1), progress)
    assert "So far: depth 3, 4." in path.read_text()
    assert path.read_text().count(">transfers</a>") == 4  # both, over less than an octave, in a sentence and the table
    assert [file.name for file in tmp_path.glob("*.*")] == ["report.html"]  # no pictures
    assert [line.split(": ")[:2] for line in lines] == [["so far", "depth 3 to 4"]]
    report.stop()
    assert "stopped; the same command goes on" in path.read_text()
    table, judged = finished(rows, study)
    page.write_report(judge(table, judged), table, judged, tmp_path, "")
    text = re.sub(r"<(script|style).*?</\1>", "", path.read_text(), flags=re.DOTALL)
    assert "progress" not in text
    assert "refresh" not in text


def test_writing_takes_a_small_share_of_the_time(rows, progress, tmp_path, monkeypatch):
    now, written = [0.0], []
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])

    def write(*_):
        written.append(now[0])
        now[0] += 2.0  # seconds

    monkeypatch.setattr(page, "write_report", write)
    report = live.LiveReport(tiny.study(**GRID), tmp_path, "")
    while now[0] < 1000:
        report({}, progress)
        now[0] += 1.0
    assert 2 * len(written) <= live.SHARE * now[0] + 2


def test_a_page_that_cannot_be_written_stops_nothing(rows, progress, tmp_path, monkeypatch):
    notes = []
    monkeypatch.setattr(progress, "say", notes.append)
    report = live.LiveReport(tiny.study(**GRID), tmp_path / "is not there", "")
    for _ in range(2):
        report(rows, progress)
    report.stop()
    assert len(notes) == 1
    assert notes[0].startswith("no report while this runs: FileNotFoundError: ")


def test_a_run_writes_it(rows, progress, tmp_path, monkeypatch):
    """And says in it that the sweep was stopped."""

    def train(study, workdir, watch, **_):
        watch(part(rows, 3, 4), progress)
        assert "So far: depth 3, 4." in (tmp_path / "report.html").read_text()
        raise Stopped(None, "")

    monkeypatch.setattr(sweep, "train", train)
    with pytest.raises(Stopped):
        sweep.run(tiny.study(**GRID), tmp_path)
    assert "stopped; the same command goes on" in (tmp_path / "report.html").read_text()


def test_training_calls_it(tmp_path):
    """With the rows that are there, and at the latest when a group is finished."""
    study = tiny.study(sweep__depths=(2,), sweep__widths=(), sweep__optimizers=("sgd",),
                       sweep__parameterizations=("mup",), sweep__at_once=6)  # fmt: skip
    seen = []
    rows = sweep.train(study, tmp_path, progress=False, watch=lambda rows, shown: seen.append((len(rows), shown.share)))
    assert len(rows) == 12
    assert seen[0] == (0, 0.0)
    assert (6, 0.5) in seen
    assert seen[-1] == (12, 1.0)


@needs_chromium
def test_an_open_page_loads_itself_anew(rows, progress, tmp_path, open_page):  # noqa: F811
    """And stays where the reader was: how far down, what is switched off, what is zoomed."""
    path = tmp_path / "report.html"

    def write(depths, reload):
        live.LiveReport(tiny.study(**GRID), tmp_path, "")(part(rows, *depths), progress)
        path.write_text(path.read_text().replace("RELOAD = 10_000;", f"RELOAD = {reload};"))

    write(DEPTHS[:3], 2_000)
    open_page.open(path, height=500)
    open_page.wait("performance.getEntriesByType('navigation')[0].type === 'reload'")  # by itself
    write(DEPTHS[:3], 1_000_000)
    open_page.wait("document.documentElement.innerHTML.includes('RELOAD = 1000000')")
    canvas = "document.querySelector('#loss_over_depth .canvas')"
    open_page.wait(f"{canvas}._fullLayout && document.getElementById('written').textContent.includes('follows')")
    open_page.run(f"Plotly.relayout({canvas}, {{'xaxis.range': [-3, 1]}}).then(() => 0)")
    label = "[...document.querySelectorAll('#loss_over_depth label')].find(label => label.textContent === 'depth_mup')"
    open_page.run(f"{label}.querySelector('input').click()")
    open_page.run("scrollTo(0, 300)")
    write(DEPTHS, 1_000_000)
    open_page.run("window.old = true; location.reload()")
    open_page.wait("window.old === undefined && document.readyState === 'complete'")
    assert "depth 3, 4, 6, 8, 24." in open_page.run("document.body.innerText")
    open_page.wait(f"{canvas}._fullLayout && {canvas}.layout.xaxis.range[0] === -3")
    open_page.wait("document.getElementById('written').textContent.includes('follows')")
    assert open_page.run("scrollY") == 300
    hidden = "[...document.querySelectorAll('#loss_over_depth .panel')].map(({hidden}) => hidden)"
    assert open_page.run(hidden) == [False, True]
    assert open_page.errors == []

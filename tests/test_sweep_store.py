"""A store holds each trial once: cut, of another schema, of several processes, in parts."""

import fcntl
import json
import os

import numpy as np
import pytest

from depthmup import sweep
from depthmup.sweep.engine import identity, part, train
from depthmup.sweep.plan import SCHEMA, grouped, trials
from depthmup.sweep.store import Claims, Store
from depthmup.train.workdir import Lines, WorkdirError
from tests import tiny

ONE = dict(sweep__depths=(2,), sweep__widths=(), sweep__optimizers=("sgd",))  # one program, 36 trials


def curves(count=1):
    """Of so many rows, a point each."""
    ones = np.ones(count, np.float32)
    return {
        "trial": np.arange(count, dtype=np.int32),
        "step": np.ones(count, np.int32),
        "loss": ones,
        "grad_norm": ones,
    }


@pytest.fixture
def opened(tmp_path):
    """A function that opens the store at tmp_path; all are closed."""
    stores = []

    def open_store(**options):
        stores.append(Store(tmp_path, identity(tiny.settings(**ONE)), **options))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def row(key, **values):
    return {"key": key, "schema": SCHEMA, "loss": 1.0, **values}


def test_a_cut_tail_is_said(opened, tmp_path):
    opened().close()
    path = tmp_path / "results.jsonl"
    whole = json.dumps(row("a")) + "\n"
    for tail in ('{"key": "b', "\0\0\0\0", '{"key": "b\n'):
        path.write_text(whole + tail)
        store = opened()
        assert store.messages() == [f"{path}: the last row was cut off and is removed; its trial runs again"]
        assert list(store.rows) == ["a"]
        assert path.read_text() == whole
        store.close()
    path.write_text(whole + "nonsense\n" + whole)
    with pytest.raises(WorkdirError, match="line 2 is not JSON: delete that line to run its trial again"):
        opened()


def test_reading_cuts_nothing(opened, tmp_path, capsys):
    opened().close()
    content = json.dumps(row("a")) + '\n{"key": "b'
    (tmp_path / "results.jsonl").write_text(content)
    assert sweep.load(tmp_path).key.tolist() == ["a"]
    assert "the last row is cut off and left out" in capsys.readouterr().out
    assert (tmp_path / "results.jsonl").read_text() == content


def test_two_writers(opened, tmp_path):
    """Each sees what the other adds; a line that the other was killed in is cut before the next is added."""
    first, second = opened(), opened()
    first.append([row("a")], curves())
    second.append([row("b", loss=float("nan"))], curves())
    assert list(second.rows) == ["a", "b"]
    first.refresh()
    assert list(first.rows) == ["a", "b"]
    with open(tmp_path / "results.jsonl", "a") as file:
        file.write('{"key": "c"')
    first.append([row("d")], curves())
    assert "cut off" in first.messages()[0]
    second.refresh()
    assert list(second.rows) == ["a", "b", "d"]
    assert [json.loads(line)["loss"] for line in (tmp_path / "results.jsonl").read_text().splitlines()] == [
        1.0,
        None,
        1.0,
    ]


def test_a_full_disk_leaves_whole_rows(tmp_path):
    lines = Lines(tmp_path / "lines", "")
    lines.append([{"a": 1}])

    class Limited:
        def __getattr__(self, name):
            return getattr(lines_file, name)

        def write(self, content):
            lines_file.write(content[:3])
            raise OSError(28, "No space left on device")

    lines_file, lines._file = lines._file, Limited()
    with pytest.raises(OSError, match="No space left"):
        lines.append([{"a": 2}])
    lines._file = lines_file
    lines.append([{"a": 3}])
    lines.close()
    assert (tmp_path / "lines").read_text() == '{"a": 1}\n{"a": 3}\n'


def test_another_schema_is_refused(opened, tmp_path):
    opened().close()
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(row("a", schema=SCHEMA + 1)) + "\n")
    with pytest.raises(WorkdirError, match=f"has rows of schema {SCHEMA + 1}, this version writes {SCHEMA}"):
        opened()
    path.write_text("")
    saved = json.loads((tmp_path / "settings.json").read_text())
    (tmp_path / "settings.json").write_text(json.dumps({**saved, "schema": 0}))
    with pytest.raises(WorkdirError, match=f"schema was 0, now it is {SCHEMA}"):
        opened()


def test_claims(opened, tmp_path):
    """What one process is at no other takes, whatever its groups are, until it is done or gone."""
    plan = trials(tiny.settings(**ONE))
    groups, others = (grouped(plan, lambda program, size=size: size) for size in (10, 16))
    first_store, second_store = opened(), opened()
    first = Claims(first_store, tmp_path)
    second = Claims(second_store, tmp_path)
    _, mine = first.take(groups)
    assert mine.trials == tuple(plan[:10])
    planned, theirs = second.take(others)
    assert (planned.trials, theirs.trials) == (tuple(plan[:16]), tuple(plan[10:16]))
    assert first.take(groups)[1].trials == tuple(plan[16:20])
    first_store.append([row(trial.key) for trial in plan[:10]], curves(10))
    first.release(mine)
    assert not first.alone()
    fcntl.flock(first._file, fcntl.LOCK_UN)  # as if it were killed
    _, theirs = second.take(others)
    assert theirs.trials == tuple(plan[16:32])
    assert second.alone()
    for claims in (first, second):
        claims.close()
    assert [path.suffix for path in (tmp_path / "claims").iterdir() if path.suffix] == []


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_parts_are_the_plan(count):
    """All of it, once, in parts as equal as can be, of every program and so of every shape."""
    plan = trials(tiny.settings())
    parts = [part(plan, i, count) for i in range(count)]
    assert sorted(t.key for own in parts for t in own) == sorted(t.key for t in plan)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for program in {trial.program for trial in plan}:
        sizes = [sum(trial.program == program for trial in own) for own in parts]
        assert max(sizes) - min(sizes) <= 1
    assert part(plan, 0, 1) == plan


def test_rows_of_other_parts_are_seen_as_they_come(opened):
    """So that what a part that is still running has done is not done again."""
    whole, other = opened(), opened(shard=(0, 2))
    other.append([row("a")], curves())
    whole.refresh()
    assert list(whole.rows) == ["a"]
    other.append([row("b")], curves())
    whole.refresh()
    assert list(whole.rows) == ["a", "b"]
    assert whole.messages() == []
    with open(other.path, "a") as file:
        file.write('{"key": "c')
    third = opened()
    assert list(third.rows) == ["a", "b"]
    assert "the last row is cut off and not used; its trial runs again" in third.messages()[0]


def test_parts_and_their_merge(tmp_path, monkeypatch):
    """Each part writes a file of its own; without a shard all are taken in, and nothing is trained again."""
    settings = tiny.settings(**ONE)
    whole = train(settings, tmp_path / "whole", progress=False)
    parts = [train(settings, tmp_path / "parts", shard=(i, 2), progress=False) for i in range(2)]
    assert [len(rows) for rows in parts] == [18, 36]  # the second sees the first's, too
    names = {path.name for path in (tmp_path / "parts").glob("*.jsonl")}
    assert names == {"results-0-of-2.jsonl", "results-1-of-2.jsonl"}
    monkeypatch.setattr(Runner, "train", lambda *_: pytest.fail("trained again"))
    assert train(settings, tmp_path / "parts", progress=False) == whole
    assert len(sweep.load(tmp_path / "parts")) == 36
    page = sweep.run(settings, tmp_path / "parts", shard=(1, 2), progress=False).page
    assert page is None
    assert os.path.getsize(tmp_path / "parts" / "results.jsonl") == 0

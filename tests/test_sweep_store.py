"""A store holds each trial once: of files that cannot be read, of another schema, of several processes, in parts."""

import contextlib
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from depthmup import sweep
from depthmup.files import digest
from depthmup.train import workdir
from depthmup.train.workdir import WorkdirError
from depthmup.trials.claims import Claims
from depthmup.trials.engine import train
from depthmup.trials.group import Runner
from depthmup.trials.plan import grid_trials, grouped, part
from depthmup.trials.store import Finished, Store
from depthmup.trials.study import SCHEMA
from tests import tiny

ONE = dict(sweep__depths=(2,), sweep__widths=(), sweep__optimizers=("sgd",))  # one program, 36 trials


def finished(*keys, steps=2, **values):
    """Trials with these keys, each with a learning curve and measurements."""
    step = np.arange(1, steps + 1, dtype=np.int32)
    curve = {"step": step, "loss": 1 / step.astype(np.float32), "grad_norm": np.ones(steps, np.float32)}
    measured = {"step": [0, 2], "quantity": ["updates", "kernels"], "layer": [1, 0], "value": np.float32([0.1, 3])}
    return [Finished({"key": key, "schema": SCHEMA, "loss": 1.0, **values}, curve, measured) for key in keys]


def files(workdir):
    return sorted((workdir / "groups").iterdir())


@pytest.fixture
def opened():
    """A function that opens the store of a workdir; all are closed."""
    with contextlib.ExitStack() as stack:
        yield lambda workdir: stack.enter_context(contextlib.closing(Store(workdir, tiny.study(**ONE).identity)))


@pytest.mark.parametrize("damage", [lambda content: content[:100], lambda content: b"", lambda content: b"nonsense"])
def test_a_file_that_cannot_be_read(opened, tmp_path, damage):
    """It is said once, its trials run again, and another process that saw it too gets what they became."""
    first = opened(tmp_path)
    first.add(finished("a", "b"))
    first.add(finished("c"))
    rows, broken = dict(first.rows), files(tmp_path)[0]
    broken.write_bytes(damage(broken.read_bytes()))
    second, third = opened(tmp_path), opened(tmp_path)
    for store in (second, third):
        store.refresh()
        (message,) = store.messages()
        assert message.startswith(f"{broken} cannot be read, and its trials run again: ")
    missing = sorted(rows.keys() - second.rows.keys())
    assert missing in (["a", "b"], ["c"])
    second.add(finished(*missing))
    third.refresh()
    assert second.rows == third.rows == opened(tmp_path).rows == rows
    assert second.messages() == third.messages() == []
    assert len(files(tmp_path)) == 2


def test_a_changed_byte_is_not_believed(opened, tmp_path):
    """Whichever it is, of the values or of the names of the columns: the file cannot be read."""
    store = opened(tmp_path)
    store.add(finished(*"abcdefgh"))
    (path,) = files(tmp_path)
    content = path.read_bytes()
    for i in range(0, len(content), 29):
        path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        assert opened(tmp_path).rows == {}
        assert len(_lists_of(tmp_path)) == 0
    path.write_bytes(content)
    assert opened(tmp_path).rows == store.rows


def _lists_of(workdir):
    try:
        return sweep.curves(workdir)
    except WorkdirError:
        return []


def test_a_full_disk_leaves_whole_files(opened, tmp_path, monkeypatch):
    """What cannot be written is not there at all; with room again the next is."""
    store = opened(tmp_path)
    store.add(finished("a"))
    before = files(tmp_path)

    def full(self, content):
        with open(self, "wb") as file:
            file.write(content[:50])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            store.add(finished("b"))
    assert list(store.rows) == ["a"]
    assert files(tmp_path) == before
    store.add(finished("b"))
    assert list(opened(tmp_path).rows) == ["a", "b"]


def test_two_writers(opened, tmp_path):
    """Each sees what the other adds; a loss that is not finite is none, in the export too."""
    first, second = opened(tmp_path), opened(tmp_path)
    first.add(finished("a"))
    second.add(finished("b", loss=float("nan")))
    assert list(second.rows) == ["b"]
    for store in (first, second):
        store.refresh()
        assert sorted(store.rows) == ["a", "b"]
    first.export()
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert lines == list(first.rows.values())
    assert [line["loss"] for line in lines] == [1.0, None]


def test_tables(opened, tmp_path, capsys):
    """What is in all files that can be read; a trial that two files have, because parts were joined, counts once."""
    store = opened(tmp_path)
    store.add(finished("a", "b"))
    store.add(finished("b", "c", steps=3))
    store.add([Finished(row, {}, {}) for row, _, _ in finished("d")])  # diverged at once: no point, no measurement
    (tmp_path / "groups" / "broken.parquet").write_bytes(b"PAR1")
    keys = sorted(sweep.load(tmp_path).key)
    assert keys == ["a", "b", "c", "d"]
    assert "broken.parquet cannot be read and is left out" in capsys.readouterr().out
    curves, measured = sweep.curves(tmp_path), sweep.measured(tmp_path)
    counts = curves.groupby("key").size().to_dict()
    assert counts in ({"a": 2, "b": 2, "c": 3}, {"a": 2, "b": 3, "c": 3})
    assert curves[curves.key == "a"].to_dict("list") == {
        "key": ["a", "a"],
        "step": [1, 2],
        "loss": [1.0, 0.5],
        "grad_norm": [1.0, 1.0],
    }
    assert measured[measured.key == "c"].to_dict("list") == {
        "key": ["c", "c"],
        "step": [0, 2],
        "quantity": ["updates", "kernels"],
        "layer": [1, 0],
        "value": [np.float32(0.1), 3.0],
    }
    assert len(measured) == 6


def test_rows_that_were_copied_alone(tmp_path):
    """They can be read, but nothing is trained beside them, since nobody knows what they belong to."""
    exported = tmp_path / "results.jsonl"
    exported.write_text('{"key": "a", "loss": 1.0}\n{"loss": 2.0}\n')
    assert sweep.load(tmp_path).loss.tolist() == [1.0, 2.0]
    for about in (sweep.curves, sweep.measured):
        with pytest.raises(WorkdirError, match="holds no"):
            about(tmp_path)
    with pytest.raises(WorkdirError, match=r"results.jsonl but no settings.json"):
        Store(tmp_path, tiny.study().identity)
    exported.write_text('{"key": "a"}\nnonsense\n')
    with pytest.raises(WorkdirError, match="line 2 is not a JSON object: delete that line"):
        sweep.load(tmp_path)


def test_another_schema_is_refused(opened, tmp_path):
    opened(tmp_path).close()
    saved = {**workdir.read_settings(tmp_path), "schema": 3}
    (tmp_path / "settings.json").write_text(json.dumps({**saved, workdir.CHECKSUM: digest(saved)}))
    with pytest.raises(WorkdirError, match=f"schema was 3, now it is {SCHEMA}. Give another --workdir"):
        opened(tmp_path)


def test_groups_without_settings_are_refused(tmp_path):
    (tmp_path / "groups").mkdir()
    with pytest.raises(WorkdirError, match=r"groups but no settings.json"):
        Store(tmp_path, tiny.study().identity)
    for damaged in ('{"a": ', "[]", "null", "{}"):
        (tmp_path / "settings.json").write_text(damaged)
        with pytest.raises(
            WorkdirError, match=r"holds groups and .*settings.json is damaged: .* give another --workdir"
        ):
            Store(tmp_path, tiny.study().identity)


@pytest.mark.parametrize("damaged", [None, "", '{"a": ', "[]", "5"])
def test_groups_tell_the_settings(opened, tmp_path, damaged):
    """Lost settings are written anew from the rows; those of another sweep are refused as before."""
    store = opened(tmp_path)
    store.add(finished("a"))
    path = tmp_path / "settings.json"
    before = path.read_text()
    path.unlink()
    if damaged is not None:
        path.write_text(damaged)
    with pytest.raises(WorkdirError, match="holds results of another config: epochs was"):
        Store(tmp_path, tiny.study(**ONE, epochs=7.0).identity)
    again = opened(tmp_path)
    assert again.messages() == [f"{path} is written anew, from groups"]
    assert path.read_text() == before
    assert list(again.rows) == ["a"]
    stamp = path.stat().st_mtime_ns, path.stat().st_ino
    assert opened(tmp_path).messages() == []
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == stamp  # equal settings are not written again


def test_a_changed_number_in_settings_is_not_believed(opened, tmp_path):
    opened(tmp_path).close()
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "epochs": 7.0}))
    with pytest.raises(WorkdirError, match=r"settings\.json is damaged, or edited: its checksum is another"):
        workdir.read_settings(tmp_path)


def test_two_sweeps_that_open_a_new_workdir_at_once(tmp_path, monkeypatch):
    """The second sees the settings of the first."""
    locked = workdir._locked

    def slow(*arguments):
        time.sleep(0.2)  # so that both have looked for settings before one writes them
        return locked(*arguments)

    def tried(epochs):
        try:
            Store(tmp_path, tiny.study(**ONE, epochs=epochs).identity).close()
        except WorkdirError as error:
            return str(error)
        return "opened"

    monkeypatch.setattr(workdir, "_locked", slow)
    with ThreadPoolExecutor(2) as pool:
        one, other = sorted(pool.map(tried, (1.0, 2.0)), key=len)
    assert one == "opened"
    assert "holds results of another config: epochs was" in other


def test_claims(opened, tmp_path):
    """What one process is at no other takes, whatever its groups are, until it is done or gone."""
    study = tiny.study(**ONE)
    plan = grid_trials(study)
    groups, others = (grouped(study, plan, lambda program, size=size: size) for size in (10, 16))
    first_store, second_store = opened(tmp_path), opened(tmp_path)
    first, second = Claims(first_store, tmp_path), Claims(second_store, tmp_path)
    _, first_group = first.take(groups)
    assert first_group.trials == tuple(plan[:10])
    planned, second_group = second.take(others)
    assert (planned.trials, second_group.trials) == (tuple(plan[:16]), tuple(plan[10:16]))
    assert first.take(groups)[1].trials == tuple(plan[16:20])
    first_store.add(finished(*(trial.key for trial in plan[:10])))
    first.release(first_group)
    assert second.take(groups)[1].trials == tuple(plan[20:30])  # neither what is done nor what is claimed
    assert not first.alone()
    # A killed process leaves its files behind, but no lock on them.
    for path in (tmp_path / "claims").glob("*.json"):
        shutil.copy(path, path.with_stem(f"killed-{path.stem}"))
    first.close()
    assert second.take(others)[1].trials == (*plan[16:20], *plan[30:32])
    assert second.alone()
    second.close()
    assert not list((tmp_path / "claims").glob("*.json"))


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_parts_are_the_plan(count):
    """All of it, once, in parts as equal as can be, of every program and so of every shape."""
    study = tiny.study()
    plan = grid_trials(study)
    parts = [part(study, plan, i, count) for i in range(count)]
    assert sorted(t.key for share in parts for t in share) == sorted(t.key for t in plan)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for program in {trial.point.program for trial in plan}:
        sizes = [sum(trial.point.program == program for trial in share) for share in parts]
        assert max(sizes) - min(sizes) <= 1
    assert part(study, plan, 0, 1) == plan


def test_parts_and_their_merge(tmp_path, monkeypatch):
    """Each part in a workdir of its own. Without a shard all files that were copied together are taken in, and nothing
    is trained again."""
    study = tiny.study(**ONE, sweep__seeds=1)
    whole = train(study, tmp_path / "whole", progress=False)
    parts = [train(study, tmp_path / str(i), shard=(i, 2), progress=False) for i in range(2)]
    assert [len(rows) for rows in parts] == [9, 9]
    for path in files(tmp_path / "1"):
        shutil.copy(path, tmp_path / "0" / "groups")
    monkeypatch.setattr(Runner, "train", lambda *_: pytest.fail("trained again"))
    result = sweep.run(study, tmp_path / "0", shard=(1, 2), progress=False)  # a part sees the others' rows
    assert (len(result.rows), result.page) == (18, None)
    assert train(study, tmp_path / "0", progress=False) == whole
    assert len(sweep.load(tmp_path / "0")) == 18
    exported = (tmp_path / "0" / "results.jsonl").read_text().splitlines()
    assert sorted(exported) == sorted((tmp_path / "whole" / "results.jsonl").read_text().splitlines())

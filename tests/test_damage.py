"""A workdir of a sweep, a check or a search with a damaged file: what it says stays the same, or one line says what is
wrong with which file."""

import json
import shutil

import numpy as np
import pytest

from depthmup import sweep
from depthmup.report.calibration import calibrations
from depthmup.report.curves import curves_along_depth
from depthmup.sweep import run
from depthmup.train.workdir import WorkdirError
from depthmup.trials.choices import Choice, Choices
from depthmup.trials.engine import train
from depthmup.trials.kept import Kept
from depthmup.trials.study import Size
from tests import tiny

pytestmark = pytest.mark.slow

STUDY = tiny.study(
    sweep__depths=(2, 4), sweep__widths=(), sweep__optimizers=("sgd",), sweep__parameterizations=("mup",),
    sweep__at_once=8, sweep__calibrate=True,
)  # fmt: skip
FILES = {
    "settings": "settings.json",
    "environment": "environment.json",
    "calibration": "calibration.json",
    "exported rows": "results.jsonl",
    "summary": "summary.json",
    "report": "report.html",
    "picture": "*.png",
    "group": "groups/*.parquet",
    "lock": ".lock",
    "lock of the opening": ".opening",
    "lock of the claims": "claims/.lock",
}


def replaced(content):
    return lambda path: path.write_bytes(content)


def changed(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :] if content else b"\x04"


def folder(path):
    path.unlink()
    path.mkdir()


def dangling(path):
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


DAMAGES = {
    "gone": lambda path: path.unlink(),
    "empty": replaced(b""),
    "cut": changed(lambda content: content[: len(content) // 2]),
    "longer": changed(lambda content: content + b"\n{"),
    "flipped": changed(flipped),
    "zeros": changed(lambda content: bytes(len(content))),
    "no text": replaced(b"\xff\xfe\x00"),
    "a list": replaced(b"[]"),
    "a number": replaced(b"5"),
    "null": replaced(b"null"),
    "other keys": replaced(b'{"a": {"b": [1]}}'),
    "a folder": folder,
    "a dangling link": dangling,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(workdir, rows by key, updates by key) of a finished sweep."""
    workdir = tmp_path_factory.mktemp("whole") / "sweep"
    result = run(STUDY, workdir, progress=False)
    return workdir, {row["key"]: row for row in result.rows}, calibrated(workdir)


def calibrated(workdir):
    updates = calibrations(STUDY, curves_along_depth(STUDY).values(), workdir)
    return {key: update.per_seed.tolist() for key, update in updates.items()}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_workdir(whole, tmp_path, capsys, file, damage):
    workdir, rows, updates = whole
    damaged = tmp_path / "sweep"
    shutil.copytree(workdir, damaged)
    path = sorted(damaged.glob(FILES[file]))[0]
    DAMAGES[damage](path)
    refused = ""
    try:
        again = {row["key"]: row for row in train(STUDY, damaged)}
        profiles = calibrated(damaged)
        sweep.compare([workdir, damaged], tmp_path)
    except (WorkdirError, OSError) as error:
        refused = str(error)
    if refused:
        assert "\n" not in refused
        assert str(damaged) in refused
        assert damage in ("a folder", "a dangling link") or file == "settings"
        return
    assert again == rows
    assert profiles == updates
    assert {row["key"] for row in sweep.load(damaged).to_dict("records")} == set(rows)
    if file in ("settings", "group", "calibration") and damage not in ("gone", "a dangling link"):
        assert path.name in capsys.readouterr().out  # that it is made anew


def made_or_refused(make):
    """(what is made, "") or (None, the error)"""
    try:
        return make(), ""
    except (WorkdirError, OSError) as error:
        return None, str(error)


def opened(workdir):
    """The kept trainings of a check."""
    return Kept(workdir, np.ones((2, 3)), {"width 4 depth 2": {"the training step": "abc"}})


def trainings(number):
    rng = np.random.default_rng(number)
    return (4, 2, "hidden", 2 * number, 2, 3), {q: rng.random((2, 3)).astype("float32") for q in ("hidden", "logits")}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["trainings.jsonl", "settings.json", "environment.json"])
def test_a_damaged_workdir_of_a_check(tmp_path, file, damage):
    """Each training that is read is as it was; the others are trained and kept anew."""
    whole = dict(map(trainings, range(3)))
    kept = opened(tmp_path)
    kept.update(whole)
    kept.close()
    DAMAGES[damage](tmp_path / file)
    kept, refused = made_or_refused(lambda: opened(tmp_path))
    if kept is None:
        assert "\n" not in refused
        assert str(tmp_path) in refused
        assert damage in ("a folder", "a dangling link") or file == "settings.json"
        return
    read = dict(kept)
    kept.update({key: changes for key, changes in whole.items() if key not in read})
    kept.close()
    again = opened(tmp_path)
    again.close()
    for of in (read, dict(again)):
        for key, changes in of.items():
            np.testing.assert_equal(changes, whole[key])
    assert again.keys() == whole.keys()
    assert file == "trainings.jsonl" or len(read) == len(whole)
    assert file != "trainings.jsonl" or len(read) == {"longer": 3, "flipped": 2}.get(damage, len(read))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_choices(tmp_path, damage):
    """Those that are read are the first ones as they were made, and more can be added."""
    search = {"target": {"width": 64}}
    choices = [
        Choice(((Size(8 * k, 2, 4, 10), 0.5**k, k),), 2.5 * k, 1.5, {"width 8": (1.0, 2.0, k)}) for k in (1, 2, 3)
    ]
    log = Choices(tmp_path, search)
    for choice in choices:
        log.add(choice)
    assert Choices(tmp_path, search).made == choices
    DAMAGES[damage](tmp_path / "choices.jsonl")
    log, refused = made_or_refused(lambda: Choices(tmp_path, search))
    if log is None:
        assert "\n" not in refused
        assert "choices.jsonl" in refused
        return
    made = list(log.made)
    assert made == choices[: len(made)]
    log.add(choices[len(made) % 3])
    assert Choices(tmp_path, search).made == [*made, choices[len(made) % 3]]


def test_a_changed_number_of_a_choice_is_seen_and_lines_without_checksums_are_read(tmp_path):
    choice = Choice(((Size(8, 2, 4, 10), 0.5, 1),), 2.5, 1.5, {"width 8": (1.0, 2.0, 3.0)})
    Choices(tmp_path, {}).add(choice)
    path = tmp_path / "choices.jsonl"
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "seconds": 3.5}))
    with pytest.raises(WorkdirError, match=r"choices\.jsonl line 1 is damaged: delete it and those after it"):
        Choices(tmp_path, {})
    path.write_text(json.dumps({key: value for key, value in line.items() if key != "checksum"}))  # as once written
    log = Choices(tmp_path, {})
    assert log.made == [choice]
    log.add(choice)
    assert Choices(tmp_path, {}).made == [choice, choice]

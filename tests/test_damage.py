"""A sweep's workdir with a damaged file: the rows come out the same, or one line says what is wrong with which file."""

import shutil

import pytest

from depthmup import sweep
from depthmup.report.calibration import calibrations
from depthmup.report.curves import curves_along_depth
from depthmup.sweep import run
from depthmup.train.workdir import WorkdirError
from depthmup.trials.engine import train
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

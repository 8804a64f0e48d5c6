"""The compiled programs that the tests keep."""

import os
import zlib

from tests import compiled


def program(folder, name, content=b"program"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}-cache").write_bytes(content)


def test_a_run_has_what_is_kept_and_keeps_what_it_made(tmp_path):
    kept = tmp_path / "programs" / "key"
    program(kept, "old")
    runs = [compiled.begin(kept) for _ in range(2)]  # at the same time
    for i, run in enumerate(runs):
        assert (run / "old-cache").read_bytes() == b"program"
        program(run, f"new_{i}", zlib.compress(b"program"))
        program(run, "both", zlib.compress(b"program"))
        program(run, "killed", zlib.compress(b"program")[:-5])  # a process ended while it wrote
    for run in runs:
        compiled.end(run, kept)
    assert sorted(path.name for path in kept.iterdir()) == ["both-cache", "new_0-cache", "new_1-cache", "old-cache"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["programs"]


def test_the_folder_is_bounded(tmp_path):
    for age in range(4):
        program(tmp_path / "programs" / f"key_{age % 2}", str(age), b"x" * 10)
        os.utime(tmp_path / "programs" / f"key_{age % 2}" / f"{age}-cache", (100 - age, 100 - age))
    compiled.shrink(tmp_path / "programs", 25)
    assert sorted(path.name for path in tmp_path.glob("programs/*/*")) == ["0-cache", "1-cache"]


def test_what_a_killed_run_left_goes_after_a_day(tmp_path):
    for name, age in (("run-killed", 2 * compiled.A_DAY), ("run-other", 60)):
        program(tmp_path / name, "some")
        moment = (tmp_path / name).stat().st_mtime - age
        os.utime(tmp_path / name, (moment, moment))
    compiled.begin(tmp_path / "programs" / "key")
    assert not (tmp_path / "run-killed").exists()
    assert (tmp_path / "run-other").exists()


def test_other_flags_have_other_programs():
    assert compiled.key({"XLA_FLAGS": "--a"}) != compiled.key({"XLA_FLAGS": "--b"})
    assert compiled.key({"XLA_FLAGS": "--a", "HOME": "x"}) == compiled.key({"XLA_FLAGS": "--a"})

"""Kill runs and sweeps at random moments until they end, and compare them with some that were left alone.

python -m tests.torture 50 runs/torture
"""

import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from pyarrow import parquet

from depthmup import sweep

ROOT = Path(__file__).parent.parent
EVERY = 10  # steps between two checkpoints
ARGUMENTS = [
    "--config=configs/digits.py",
    "--config.model.width=32",
    "--config.optimizer.name=adam",
    "--config.optimizer.learning_rate=0.01",
    "--config.epochs=30",
    f"--config.log_every={EVERY}",
    "--config.evaluate_every=50 steps",
    f"--config.checkpoint.every={EVERY} steps",
]
SWEEP = [
    "sweep",
    "--config=configs/digits.py",
    "--config.model.width=16",
    "--config.sweep.depths=(2, 4)",
    "--config.sweep.widths=()",
    "--config.sweep.seeds=2",
    "--config.sweep.optimizers=('sgd',)",
    "--config.sweep.at_once=19",  # a sixth of a shape's: two shapes, twelve groups
    "--config.epochs=12",
    "--config.checkpoint.every=40 steps",
]
TIMING = ("examples_per_second", "examples_per_second_per_device", "input_wait", "mfu")
LIMIT = 900  # seconds that a run may take, on a slow machine beside other work
LONGEST = 1.0  # seconds from the first progress to a kill, at most


class Kill(NamedTuple):
    step: int  # of the last report before it
    writing: bool  # was a checkpoint being written?
    went_on: int  # the step that the next run went on from


def start(workdir, *arguments, before=(), job=ARGUMENTS):
    """A run, or another job; before: what the command is an argument of."""
    command = [*before, sys.executable, "main.py", *job[:1], f"--workdir={workdir}", *job[1:], *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process):
    """(exit status, output) of a run; one that hangs is killed, and raises."""
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, output.decode()


def wait_for(process, text):
    """The output up to a line with this text; raises if the run ends or hangs before."""
    output, deadline = b"", time.monotonic() + LIMIT
    while text.encode() not in output:
        assert select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0], output.decode()
        piece = os.read(process.stdout.fileno(), 65536)
        assert piece, f"it ended before {text!r}: {output.decode()}"
        output += piece
    return output.decode()


def ended(process, seconds):
    """Whether it ended well within so many seconds; else it is killed."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert process.returncode in (0, -signal.SIGKILL), process.returncode
    return process.returncode == 0


def outcome(workdir):
    """The metrics at the end, and every row of metrics.jsonl, without timings."""
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if k not in TIMING} for row in rows]
    return json.loads((workdir / "metrics.json").read_text())["metrics"], rows


def kill_until_done(workdir, kills, rng):
    """Start a run, kill -9 it at random moments up to `kills` times, then let it end: what happened."""
    happened, before = [], None
    for number in range(kills + 1):
        process = start(workdir)
        output = wait_for(process, "step ")
        resumed = re.search(r"going on from step (\d+)", output)
        if before:
            happened.append(Kill(*before, int(resumed[1]) if resumed else 0))
        if ended(process, LIMIT if number == kills else rng.uniform(0, LONGEST)):
            return happened
        rows = (workdir / "metrics.jsonl").read_bytes()
        steps = [json.loads(line)["step"] for line in rows[: rows.rfind(b"\n") + 1].splitlines()]
        before = max(steps, default=0), bool(list((workdir / "checkpoints").glob("*tmp*")))
    raise AssertionError("not reached: the last run is not killed")


class SweepKill(NamedTuple):
    rows: int  # that were there
    unfinished: bool  # was there a checkpoint of a group?


def sweep_outcome(workdir):
    """All rows and all learning curves, in one order."""
    rows = sorted((workdir / "results.jsonl").read_text().splitlines())
    return rows, sweep.curves(workdir).sort_values(["key", "step"]).to_csv(index=False)


def kill_sweep_until_done(workdir, kills, rng, job=SWEEP):
    """Start a sweep, kill -9 it at random moments up to `kills` times, then let it end: what happened.

    The files of finished groups that were there at a kill are there after it, whole and unchanged.
    """
    happened, kept = [], {}
    for number in range(kills + 1):
        process = start(workdir, job=job)
        wait_for(process, " trials")  # the estimate, or the end
        done = ended(process, LIMIT if number == kills else rng.uniform(0, LONGEST))
        groups = {path: path.read_bytes() for path in workdir.glob("groups/*.parquet")}
        assert kept.items() <= groups.items()
        kept = groups
        if done:
            return happened
        rows = sum(parquet.read_metadata(path).num_rows for path in groups)
        happened.append(SweepKill(rows, bool(list(workdir.glob("unfinished/*/checkpoints/*")))))
    raise AssertionError("not reached: the last sweep is not killed")


def killed(kills, folder, job, kill, result, rng):
    """(what happened at each kill, how many jobs of this kind ended, all as the one that was left alone)."""
    happened, count = [], 0
    assert finish(start(folder / "alone", job=job))[0] == 0
    expected = result(folder / "alone")
    while len(happened) < kills:
        workdir = folder / str(count)
        happened += kill(workdir, min(10, kills - len(happened)), rng)
        assert result(workdir) == expected, f"{workdir} is not {folder / 'alone'}"
        count += 1
        print(f"{folder}: {len(happened)} kills, {count} ended as the one left alone", flush=True)
    return happened, count


def main(kills, folder):
    rng = random.Random(0)
    shutil.rmtree(folder, ignore_errors=True)
    happened, runs = killed(kills, folder / "runs", ARGUMENTS, kill_until_done, outcome, rng)
    of_sweeps, sweeps = killed(kills, folder / "sweeps", SWEEP, kill_sweep_until_done, sweep_outcome, rng)
    lost = sorted(kill.step - kill.went_on for kill in happened)
    writing, unfinished = sum(kill.writing for kill in happened), sum(kill.unfinished for kill in of_sweeps)
    keys = [json.loads(line)["key"] for line in sweep_outcome(folder / "sweeps" / "alone")[0]]
    assert len(set(keys)) == len(keys)
    print("All ended bit for bit as those that were left alone, no row lost, none twice:")
    print(f"{runs} runs, {len(happened)} kills, {writing} while a checkpoint was being written,")
    print(f"    steps lost at a kill: median {lost[len(lost) // 2]}, most {lost[-1]}")
    print(f"{sweeps} sweeps of {len(keys)} rows, {len(of_sweeps)} kills, {unfinished} with a checkpoint of a group")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

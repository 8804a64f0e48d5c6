"""Kill runs at random moments until they end, and compare them with one that was left alone.

python -m tests.torture 50 runs/torture docs/torture.md
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
TIMING = ("images_per_second", "images_per_second_per_device", "input_wait", "mfu")
LIMIT = 120  # seconds that a run may take
LONGEST = 1.0  # seconds from the first progress to a kill, at most


class Kill(NamedTuple):
    step: int  # of the last report before it
    writing: bool  # was a checkpoint being written?
    went_on: int  # the step that the next run went on from


def start(workdir, *arguments, before=()):
    """A run; before: what the command is an argument of."""
    command = [*before, sys.executable, "main.py", f"--workdir={workdir}", *ARGUMENTS, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process):
    """(exit status, output) of a run."""
    output, _ = process.communicate(timeout=LIMIT)
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
        try:
            process.wait(LIMIT if number == kills else rng.uniform(0, LONGEST))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if process.returncode == 0:
            return happened
        assert process.returncode == -signal.SIGKILL, process.returncode
        rows = (workdir / "metrics.jsonl").read_bytes()
        steps = [json.loads(line)["step"] for line in rows[: rows.rfind(b"\n") + 1].splitlines()]
        before = max(steps, default=0), bool(list((workdir / "checkpoints").glob("*tmp*")))
    raise AssertionError("not reached: the last run is not killed")


def main(kills, folder, page):
    rng, happened, runs = random.Random(0), [], 0
    shutil.rmtree(folder, ignore_errors=True)
    assert finish(start(folder / "alone"))[0] == 0
    expected = outcome(folder / "alone")
    while len(happened) < kills:
        workdir = folder / str(runs)
        happened += kill_until_done(workdir, min(10, kills - len(happened)), rng)
        assert outcome(workdir) == expected, f"{workdir} is not {folder / 'alone'}"
        runs += 1
        print(f"{len(happened)} kills in {runs} runs, all of which ended as the one left alone", flush=True)
    lost = [kill.step - kill.went_on for kill in happened]
    text = f"""# Killed at random moments

`make torture` trains on the digits with a checkpoint every {EVERY} steps, kills the process (`kill -9`) up to
{LONGEST:g} s after its first progress, starts it again, up to ten times a run, and compares each run with one that was
left alone: all rows of `metrics.jsonl` but for timings, and the final metrics of `metrics.json`.

| | |
|---|---|
| kills | {len(happened)} |
| of them while a checkpoint was being written | {sum(kill.writing for kill in happened)} |
| runs that ended, all equal to the one left alone, to the last bit | {runs} |
| steps lost at a kill: median, most | {sorted(lost)[len(lost) // 2]}, {max(lost)} |

A kill loses the steps since the last checkpoint that was on the disk: two intervals at most, about, for one is written
while the next steps are trained.
"""
    page.write_text(text)
    print(text)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))

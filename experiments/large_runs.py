"""Does the learning rate of a small GPT carry to 200 million parameters? On one GPU, in parts of some minutes.

    python -m experiments.large_runs --minutes=8    # one part: writes its rows; the same command goes on, to the step
    python -m experiments.large_runs --plan         # what is left, part by part, and its cost on an H100
    python -m experiments.large_runs --table        # what the committed rows say
    python -m experiments.large_runs --smoke        # a fiftieth of the size on a CPU; rows go to a temporary folder

configs/gpt.py on the Python sources of the pinned packages (data.name=tokens, 8,192 tokens): learned positions,
LayerNorm, tied embeddings, heads of 64, bfloat16, AdamW with decay .1 and b2 .95, warm-up over a tenth of the steps,
then a cosine to a tenth. 512 steps of 64 x 1,024 tokens at every size. Base: width 256, 4 blocks. Jumps, in the order
of what a minute decides: to 32 blocks ("deep"), to width 1,024 ("wide"), to both 1,024 and 16 blocks ("large", 200
million parameters in blocks), to 512 and 8 ("middle").

**Question.** What does the base's best learning rate cost in each jump, against half of it and twice it, under sp, mup,
depth_mup and completep? Rules that are the same at a size are trained once: all at the base, sp and mup along depth,
all but sp along width. First all of seed 0, then all of seed 1; the base's best rate is that of seed 0, among octaves.

**Measures.** The validation loss. *Cost*: the mean over seeds at the kept rate over that at the best of the three, in
percent. *Moved*: octaves from the base's best rate to the jump's, each the vertex of the parabola through the logs of
the losses at the three rates.

**Predictions**, written before the first training. The law (`fit.scaling_law`) of docs/language.md's AdamW rows, base
32 x 2 of 2.3 nats, says for four times the width and depth -2.5 octaves under sp, -1.2 under mup, -.3 under depth_mup,
-.8 under completep; for eight times the depth -.7, -.7, +.8 and -.1. There the rate was constant and without decay.
The law is carried to this base as it stands, with its 95% intervals for "large" and .6 octaves to both sides for
"deep", which is inside of those rows.

- "large" moves by -2.5 [-3.2, -1.8] octaves under sp, which costs more than 2%;
- by -1.2 [-1.9, -.5] octaves under mup, which costs .3% to 5%;
- by -.3 [-1.1, +.4] octaves under depth_mup, which costs less than 1%;
- by -.8 [-1.6, -.1] octaves under completep, which costs less than 1%.
- "deep" moves by +.8 [+.2, +1.4] octaves under depth_mup, by -.1 [-.7, +.5] under completep.
- At the kept rate of "large" completep's loss is below depth_mup's, by 0 to 3%.

**Rule of decision.** A parameterization carries the rate in a jump if its cost is below 1%, does not if it is above 2%
or the kept rate diverges, else the rows decide nothing; a cost within the spread of the base's two seeds counts as
none. Nothing is trained again after looking but by more seeds for all.

A training that does not fit into a part is saved to the step, in runs/large_runs, and goes on in the next. Cost: 8e17
operations a seed; both take three hours of an H100 at a quarter of its peak, by --plan.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas

from configs import gpt
from depthmup.backend import prepare_cpu
from depthmup.data.prepare_tokens import write_tokens
from depthmup.rules.parameterization import Name
from depthmup.settings import Settings, from_config, put
from depthmup.train import flops
from depthmup.train.build import batches_of, hyper_of, task_of
from depthmup.train.checkpoint import FOLDER
from depthmup.train.chips import CHIPS
from depthmup.train.run import train_network
from depthmup.train.stop import Stop, Stopped
from depthmup.trials.group import compiled_in
from experiments import command_line
from experiments.output import Interval, markdown
from experiments.published import RESULTS, ROOT, replace

RUNS, ROWS = ROOT / "runs" / "large_runs", RESULTS / "large_runs.parquet"
RULES: tuple[Name, ...] = ("completep", "sp", "mup", "depth_mup")
SHIFTS = (0, -1, 1)  # octaves from the base's best rate, in the order of training
SAVING = 20.0  # seconds of a part in which the last state is saved
LEAST = 60.0  # seconds that must be left to begin a training, which cannot be stopped while it compiles
AGAIN = 1.0  # seconds between two requests to stop
CHIP, SHARE, STARTING = "H100", 0.25, 40.0  # the plan's: share of the peak that is reached, seconds to start a training


class Trial(NamedTuple):
    """One training. octave: log2 of the learning rate at the base."""

    parameterization: Name
    width: int
    depth: int
    octave: int
    seed: int

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.depth

    def __str__(self) -> str:
        return f"{self.parameterization}-{self.width}x{self.depth}-rate{self.octave}-seed{self.seed}"


class Scale(NamedTuple):
    """base, jumps: (width, depth). octaves: the base's first rates, more where the best is at an end."""

    base: tuple[int, int]
    jumps: dict[str, tuple[int, int]]
    octaves: Sequence[int]
    seeds: int
    steps: int
    batch_size: int
    context: int


FULL = Scale(
    (256, 4), {"deep": (256, 32), "wide": (1024, 4), "large": (1024, 16), "middle": (512, 8)},
    range(-12, -5), seeds=2, steps=512, batch_size=64, context=1024,
)  # fmt: skip
SMOKE = Scale(
    (32, 4), {"deep": (32, 32), "wide": (128, 4), "large": (128, 16)},
    range(-9, -6), seeds=1, steps=10, batch_size=2, context=64,
)  # fmt: skip


def trained_as(name: Name, size: tuple[int, int], base: tuple[int, int]) -> Name:
    """The parameterization whose trainings stand for those of `name` at this size, where several are the same."""
    same_width, same_depth = (here == there for here, there in zip(size, base, strict=True))
    if (same_width and name == "sp") or (same_depth and name != "sp"):
        return "mup"
    return name


def best_octave(rows: pandas.DataFrame, scale: Scale) -> int | None:
    """The base's best rate. None: its sweep is not finished."""
    losses = _of_base(rows, scale)
    good = losses.dropna()
    if set(scale.octaves) - set(losses.index):
        return None
    if good.empty:
        raise SystemExit("the base diverged at every learning rate: lower Scale.octaves")
    best = int(good.idxmin())
    return best if {best - 1, best + 1} <= set(losses.index) else None


def _of_base(rows: pandas.DataFrame, scale: Scale) -> pandas.Series:
    """{octave: loss} of seed 0."""
    of = rows[(rows["width"] == scale.base[0]) & (rows["depth"] == scale.base[1]) & (rows["seed"] == 0)]
    return of.set_index("octave")["validation_loss"].astype(float)


def missing(rows: pandas.DataFrame, scale: Scale) -> list[Trial]:
    """What is still to train, in order. Before the base's sweep is finished its best rate is taken for the middle of
    the octaves, since the number of trainings is the same at any."""
    losses, best = _of_base(rows, scale), best_octave(rows, scale)
    octaves = [octave for octave in scale.octaves if octave not in losses.index]
    if best is None and not octaves:
        lowest = int(losses.idxmin())
        octaves = [octave for octave in (lowest - 1, lowest + 1) if octave not in losses.index]
    middle = scale.octaves[len(scale.octaves) // 2] if best is None else best
    trials = [Trial("mup", *scale.base, octave, 0) for octave in octaves]
    for seed in range(scale.seeds):
        for size in [scale.base] * (seed > 0) + [*scale.jumps.values()]:
            names = dict.fromkeys(trained_as(name, size, scale.base) for name in RULES)
            trials += [Trial(name, *size, middle + shift, seed) for name in names for shift in SHIFTS]
    done = {Trial(*of) for of in rows[[*Trial._fields]].itertuples(index=False, name=None)}
    return [trial for trial in trials if trial not in done]


def settings_of(trial: Trial, scale: Scale, data_dir: str | None = None) -> Settings:
    """data_dir: of tokens; None: the Python sources."""
    config = gpt.get_config()
    width, depth = scale.base
    head = width // 4
    config.model.update(width=trial.width, depth=trial.depth, heads=trial.width // head, dtype="bfloat16")
    config.parameterization.update(
        name=trial.parameterization, base_width=width, base_depth=depth, base_head_dim=head
    )  # fmt: skip
    config.optimizer.update(name="adamw", learning_rate=2.0**trial.octave, b2=0.95, weight_decay=0.1)
    config.data.update(
        name="tokens", data_dir=data_dir, context=scale.context, batch_size=scale.batch_size, seed=trial.seed
    )
    config.update(seed=trial.seed, schedule="cosine_to_tenth", evaluate_every="never")
    config.checkpoint.update(keep=1, best=0)
    config.parallel.devices = 1
    settings = from_config(config)
    epoch = batches_of(settings).steps_per_epoch
    return put(settings, {"epochs": scale.steps / epoch, "warmup_epochs": scale.steps / 10 / epoch})


def small_corpus(folder: Path) -> Path:
    """Bytes of this package's sources as tokens, of which few are held out: an evaluation of the smoke run is short."""
    result = folder / "tokens"
    if not result.exists():
        write_tokens(sorted((ROOT / "depthmup").rglob("*.py")), result, held_out=0.002)
    return result


def part(scale: Scale, rows: Path, runs: Path, minutes: float, data_dir: str | None = None) -> list[Trial]:
    """Train for so many minutes, and write each training's row when it is finished: what is left."""
    deadline = time.monotonic() + 60 * minutes - SAVING
    with _stopping_at(deadline) as stop, compiled_in(runs / "compiled"):
        while left := missing(read(rows), scale):
            if stop.requested or deadline - time.monotonic() < LEAST:
                return left
            trial, workdir = left[0], runs / str(left[0])
            print(f"{trial}, of {len(left)} that are left")
            try:
                metrics = train_network(settings_of(trial, scale, data_dir), workdir, "experiments.large_runs")
            except Stopped as stopped:
                print(f"{trial}: {stopped}")
                return left
            row = {**trial._asdict(), "steps": scale.steps, "diverged": bool(metrics["diverged"])}
            row["validation_loss"] = math.nan if row["diverged"] else metrics["validation_loss"]
            row["device"] = jax.devices()[0].device_kind
            replace(rows, pandas.DataFrame([row]), Trial._fields)
            shutil.rmtree(workdir / FOLDER, ignore_errors=True)  # gigabytes each, and the row is written
    return []


@contextlib.contextmanager
def _stopping_at(deadline: float) -> Iterator[Stop]:
    """From the deadline (time.monotonic) on this process gets SIGTERM, again and again, so that the training that runs
    then saves its state and stops; one that is outside `train` is noted in what this yields."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(AGAIN):
            if time.monotonic() >= deadline:
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=ask, daemon=True)
    with Stop() as stop:
        thread.start()
        try:
            yield stop
        finally:
            over.set()
            thread.join()


def read(path: Path = ROWS) -> pandas.DataFrame:
    """The rows that are there."""
    columns = [*Trial._fields, "steps", "diverged", "validation_loss", "device"]
    return pandas.read_parquet(path) if path.exists() else pandas.DataFrame(columns=columns)


def losses(rows: pandas.DataFrame, scale: Scale, name: Name, size: tuple[int, int]) -> np.ndarray:
    """(seeds, 3): validation losses at half the base's best rate, at it and at twice it; NaN where a training diverged.
    Seeds that lack one are left out."""
    best = best_octave(rows, scale)
    key = [trained_as(name, size, scale.base), *size]
    of = rows[(rows[["parameterization", "width", "depth"]] == key).all(axis=1)]
    if best is None or of.empty:
        return np.empty((0, 3))
    three = of.assign(validation_loss=of["validation_loss"].fillna(math.inf))
    table = three.pivot_table(index="seed", columns="octave", values="validation_loss", aggfunc="last")
    table = table.reindex(columns=[best - 1, best, best + 1]).dropna()
    return table.replace(math.inf, math.nan).to_numpy(np.float64)


def cost_of(three: np.ndarray) -> float:
    """Percent by which the kept rate's mean loss is above the best of the three; inf where a seed diverged at it."""
    means = np.where(np.isnan(three).any(axis=0), math.inf, three.mean(axis=0))
    return math.inf if math.isinf(means[1]) else 100 * float(means[1] / means.min() - 1)


def vertex(three: np.ndarray) -> float:
    """Octaves from the kept rate to the best, by the parabola through the logs of the mean losses; NaN without one."""
    low, middle, high = np.log(three.mean(axis=0))
    curvature = low + high - 2 * middle
    return float((low - high) / 2 / curvature) if curvature > 0 else math.nan


def answer(cost: float, spread: float = 0.0) -> str:
    """The rule of decision. spread: of the base's seeds, in percent."""
    return "carries" if cost < max(1.0, spread) else "does not" if cost > 2 else "undecided"


def spread_of_base(rows: pandas.DataFrame, scale: Scale) -> float:
    """Percent by which the base's seeds differ at its best rate; 0 with one seed."""
    at_best = losses(rows, scale, "mup", scale.base)[:, 1]
    return 100 * float(at_best.max() / at_best.min() - 1) if len(at_best) > 1 else 0.0


def cost(of: str) -> Interval:
    """Of the committed rows, of "completep large"."""
    return Interval(cost_of(_committed(of)), math.nan, math.nan)


def moved(of: str) -> Interval:
    """Octaves, of the committed rows, of "completep large"."""
    return Interval(vertex(_committed(of)) - vertex(_committed("mup base")), math.nan, math.nan)


def ahead(of: str) -> Interval:
    """Percent by which the first one's loss at the kept rate is below the second's, of "completep depth_mup large"."""
    first, second, jump = of.split()
    kept = [_committed(f"{name} {jump}")[:, 1].mean() for name in (first, second)]
    return Interval(100 * float(kept[1] / kept[0] - 1), math.nan, math.nan)


def _committed(of: str) -> np.ndarray:
    name, jump = of.split()
    return losses(read(), FULL, name, {"base": FULL.base, **FULL.jumps}[jump])  # type: ignore[arg-type]


def table(rows: pandas.DataFrame, scale: Scale) -> str:
    """A row for each jump and parameterization that has all three rates, as Markdown."""
    best, lines = best_octave(rows, scale), []
    if best is None:
        return "The base's sweep is not finished."
    base = losses(rows, scale, "mup", scale.base)
    for jump, size in scale.jumps.items():
        for name in RULES:
            three = losses(rows, scale, name, size)
            if not len(three):
                continue
            means = " ".join("diverged" if math.isnan(loss) else f"{loss:.3f}" for loss in three.mean(axis=0))
            price = cost_of(three)
            move = vertex(three) - (vertex(base) if len(base) else 0.0)
            figures = (
                means,
                "-" if math.isnan(move) else f"{move:+.1f}",
                "diverges" if math.isinf(price) else f"{price:.1f}%",
            )
            lines.append(
                (f"{jump}, {size[0]} x {size[1]}", f"`{name}`", str(len(three)), *figures,
                 answer(price, spread_of_base(rows, scale)))
            )  # fmt: skip
    columns = ("jump", "", "seeds", "loss at half the rate, at it, at twice", "moved, octaves", "costs", "the rate")
    return f"The base's best rate is 2^{best}.\n\n{markdown(columns, lines)}"


def plan(scale: Scale, trials: Sequence[Trial], minutes: float, data_dir: str | None = None) -> str:
    """What each part trains and costs, in words, by the operations of a step that JAX's program has."""
    of_size: dict[tuple[int, int], float] = {}
    parts: list[dict[str, Any]] = []
    free = 0.0
    for trial in trials:
        if trial.size not in of_size:
            settings = settings_of(trial, scale, data_dir)
            step = flops.of_step(task_of(settings), hyper_of(settings), scale.batch_size)
            of_size[trial.size] = step * scale.steps
        work = of_size[trial.size] / (CHIPS[CHIP].peak * SHARE)
        while work > 0:
            if free < LEAST:
                parts.append({"seconds": 0.0, "trials": {}})
                free = max(60 * minutes - SAVING, 2 * LEAST)
            here = min(work, free - STARTING)
            name = "x".join(map(str, trial.size))
            last = parts[-1]
            last["trials"][name] = last["trials"].get(name, 0) + 1
            last["seconds"] += STARTING + here
            free, work = free - STARTING - here, work - here
    lines = [f"{w} x {d}: {of:.2g} operations a training" for (w, d), of in of_size.items()]
    lines.append(
        f"{len(trials)} trainings; seconds on one {CHIP} at {SHARE:.0%} of its peak, {STARTING:g} to start a training:"
    )
    for number, of_part in enumerate(parts, 1):
        names = ", ".join(f"{count} of {name}" for name, count in of_part["trials"].items())
        lines.append(f"part {number}: {of_part['seconds']:.0f} s: {names}")
    return "\n".join([*lines, f"{sum(of_part['seconds'] for of_part in parts) / 60:.0f} minutes in all"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line.parser("experiments.large_runs", __doc__)
    parser.add_argument("--minutes", type=float, default=8.0, help="length of a part; default: 8")
    parser.add_argument("--data_dir", help="folder of tokens; default: the Python sources")
    parser.add_argument("--out", type=Path, help="folder of rows and runs; default: docs/results and runs/large_runs")
    what = parser.add_mutually_exclusive_group()
    for name in ("plan", "table"):
        what.add_argument(f"--{name}", action="store_true", help="print it, and train nothing")
    parser.add_argument("--smoke", action="store_true", help="a fiftieth of the size, on any device")
    options = parser.parse_args(arguments)
    least = (SAVING + LEAST) / 60
    if options.minutes <= least:
        parser.error(f"--minutes={options.minutes:g}: a part takes more than {least:.1f} minutes to start and to save")
    prepare_cpu()
    scale = SMOKE if options.smoke else FULL
    folder = options.out or (Path(tempfile.mkdtemp(prefix="large_runs-")) if options.smoke else None)
    rows, runs = (folder / ROWS.name, folder / "runs") if folder else (ROWS, RUNS)
    data_dir = options.data_dir or (str(small_corpus(folder)) if folder and options.smoke else None)
    if options.plan:
        print(plan(scale, missing(read(rows), scale), options.minutes, data_dir))
        return
    if not options.table:
        if not options.smoke and jax.default_backend() == "cpu":
            print("no GPU is at hand: --smoke runs a fiftieth of the size, --plan says the cost", file=sys.stderr)
            raise SystemExit(2)
        left = part(scale, rows, runs, options.minutes, data_dir)
        goes_on = f": the same command{f' with --out={folder}' if folder else ''} goes on" if left else ""
        print(f"rows: {rows}; {len(left)} trainings are left{goes_on}")
    print(table(read(rows), scale))


if __name__ == "__main__":
    main()

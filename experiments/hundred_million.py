"""Does the learning rate of a GPT of .5 million parameters carry to one of 101 million? On two cores.

    python -m experiments.hundred_million          # trains what is missing, a row for each training: 8 minutes each
    python -m experiments.hundred_million --table  # what the committed rows say
    python -m experiments.documents                # the table of docs/language.md, README's and its picture

The GPT of gpt_linen.py on bytes of NumPy's docstrings, AdamW without decay, b2 .95, a warm-up over a tenth of the
steps, then a cosine to a tenth. 192 steps of 16 x 32 bytes at both sizes: width 128 with 2 blocks, where octaves are
swept, and width 1,024 with 8 blocks. Trained in the order of what a minute decides: all of one seed before the next.

**Question.** What does the small one's best learning rate cost at the large size, under "completep" and under "sp"?

**Measures.** The loss on the last tenth of the text, which is not trained on. *Cost*: the mean over seeds at the kept
rate over that at the best rate, in percent. *Moved*: octaves from the small one's best rate to the large one's, each
the vertex of the parabola through the logs of the losses at the best rate and its neighbours. Octaves that "completep"
trains: the kept one and its neighbours; where the best lies at an end, the next, until it does not. "sp" trains the
kept rate, a fourth and a sixteenth, so that its cost is a lower bound.

**Predictions**, written before the first training at the large size.

- "completep" moves by -.6 [-1.2, 0] octaves: docs/language.md has -.2 to -.3 a doubling of the width from 32 to 256,
  which fades as the base grows. It costs less than 2%.
- `fit.scaling_law` of the rows of docs/language.md (a constant rate, widths to 256) says otherwise: -1.7 [-2.9, -.5]
  octaves under "completep".
- "sp" costs more than 10%, or diverges; at the sixteenth its loss is lower than at the fourth (the law: -3.6 octaves).
- At the kept rate the loss of "completep" is more than 2% below the lowest one of "sp".

"mup" was added when seed 0 of these was known, at the kept rate alone, which says what the rule of depth adds:

- At the kept rate the loss of "mup" is 1% to 10% above that of "completep" (docs/batch.md: 6 and 9%).

**Rule of decision**, that of large_runs.py: a parameterization carries the rate if its cost is below 1%, does not if it
is above 2% or the kept rate diverges, else the rows decide nothing. Nothing is trained again after looking but by more
seeds for all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.colors import size_colors
from depthmup.rules.parameterization import Name
from experiments import command_line, gpt_linen, large_runs
from experiments.figures.figure import IMAGES, panels, save
from experiments.language import CHANCE, CONTEXT, loss, windows
from experiments.large_runs import Trial, answer
from experiments.output import Interval, markdown
from experiments.published import RESULTS, replace

ROWS = RESULTS / "hundred_million.parquet"
SMALL, LARGE = (128, 2), (1024, 8)
OCTAVES = range(-10, -3)  # of the small one's rates: log2
# Octaves from the small one's best rate, in the order of training.
SHIFTS: dict[Name, tuple[int, ...]] = {"completep": (0, -1, 1), "sp": (0, -4, -2), "mup": (0,)}
WORDS: dict[Name, str] = {
    "sp": "nothing rescaled (`sp`)",
    "mup": "by width (`mup`)",
    "completep": "by width and depth (`completep`)",
}
SEEDS, STEPS, BATCH = 3, 192, 16
WATCHED = 16  # steps between two looks at the loss
HELD_OUT = 256  # windows of the last tenth of the text


def train(trial: Trial) -> float:
    """The loss on text that is not trained on; NaN where the training diverged, which ends it."""
    m = dm.setup(
        trial.parameterization, gpt_linen.GPT, jnp.zeros((1, CONTEXT), jnp.int32), width=trial.width, depth=trial.depth,
        base=SMALL, fan_in_init=True,
    )  # fmt: skip
    peak = 2.0**trial.octave
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, STEPS // 10, STEPS, peak / 10)
    tx = m.optimizer("adamw", schedule, b2=0.95, weight_decay=0.0)
    params = m.init(jax.random.key(trial.seed))

    def step(params: Any, state: Any, number: jax.Array) -> tuple[Any, Any, jax.Array]:
        x, targets = windows(0.0, 0.9, jax.random.fold_in(jax.random.key(1), number), BATCH)
        value, grads = jax.value_and_grad(lambda params: loss(m.apply(params, x), targets))(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state, compiled = tx.init(params), jax.jit(step, donate_argnums=(0, 1))
    for number in range(STEPS):
        params, state, value = compiled(params, state, jnp.int32(number))
        if number % WATCHED == 0:
            print(f"{trial}: step {number}, loss {float(value):.3f}", flush=True)
            if not float(value) < 2 * CHANCE:
                return math.nan
    held_out = windows(0.9, 1.0, jax.random.key(2), HELD_OUT)
    evaluate = jax.jit(lambda params, x, targets: loss(m.apply(params, x), targets))
    parts = zip(*(jnp.split(part, HELD_OUT // BATCH) for part in held_out), strict=True)
    return float(np.mean([float(evaluate(params, x, targets)) for x, targets in parts]))


def read() -> pandas.DataFrame:
    """The rows that are there."""
    return pandas.read_parquet(ROWS) if ROWS.exists() else pandas.DataFrame(columns=[*Trial._fields, "loss"])


def losses(rows: pandas.DataFrame, name: Name, size: tuple[int, int]) -> pandas.DataFrame:
    """A row for each seed that has the kept rate, a column for each octave that all of these seeds have; inf where a
    training diverged. At the small size all parameterizations are "sp"."""
    of = rows[(rows[["parameterization", "width", "depth"]] == [name if size == LARGE else "sp", *size]).all(axis=1)]
    of = of.assign(loss=of["loss"].astype(float).fillna(math.inf))
    table = of.pivot_table(index="seed", columns="octave", values="loss", aggfunc="last")
    kept = table.columns[table.columns == kept_octave(rows)] if size == LARGE else []
    return table.dropna(subset=list(kept)).dropna(axis=1)


def means(rows: pandas.DataFrame, name: Name, size: tuple[int, int]) -> dict[int, float]:
    """{octave: mean loss over the seeds of `losses`}"""
    return {int(octave): float(mean) for octave, mean in losses(rows, name, size).mean().items()}


def best_octave(of: dict[int, float]) -> int:
    return min(of, key=lambda octave: of[octave])


def kept_octave(rows: pandas.DataFrame) -> int:
    """log2 of the small one's best rate."""
    return best_octave(means(rows, "sp", SMALL))


def missing(rows: pandas.DataFrame) -> list[Trial]:
    """The trials without a row, in order: at the large size all of one seed before the next."""
    done = {Trial(*of) for of in rows[[*Trial._fields]].itertuples(index=False, name=None)}
    small = [Trial("sp", *SMALL, octave, seed) for octave in OCTAVES for seed in range(SEEDS)]
    if left := [trial for trial in small if trial not in done]:
        return left
    kept = kept_octave(rows)
    for seed in range(SEEDS):
        large = [Trial(name, *LARGE, kept + shift, seed) for name, shifts in SHIFTS.items() for shift in shifts]
        if left := [trial for trial in large if trial not in done]:
            return left
        best = best_octave(means(rows, "completep", LARGE))
        large = [Trial("completep", *LARGE, octave, s) for octave in range(best - 1, best + 2) for s in range(seed + 1)]
        if left := [trial for trial in large if trial not in done]:
            return left
    return []


def vertex(of: dict[int, float]) -> tuple[float, float]:
    """log2 of the best rate and its loss, by the parabola; NaN where a neighbour was not trained or diverged."""
    best = best_octave(of)
    if not {best - 1, best + 1} <= set(of):
        return math.nan, math.nan
    around = np.array([of[octave] for octave in (best - 1, best, best + 1)])
    if not np.isfinite(around).all():
        return math.nan, math.nan
    low, middle, high = np.log(around)
    shift = large_runs.vertex(around[None])
    return best + shift, math.exp(middle - (low - high) * shift / 4)


def cost_of(rows: pandas.DataFrame, name: Name) -> float:
    """Percent by which the kept rate's mean loss is above the lowest; inf where a seed diverged at it."""
    of = means(rows, name, LARGE)
    kept = of[kept_octave(rows)]
    return math.inf if math.isinf(kept) else 100 * (kept / min(of.values()) - 1)


def above_vertex(rows: pandas.DataFrame, name: Name) -> float:
    """Percent by which the kept rate's mean loss is above that of the vertex; NaN without one."""
    of = means(rows, name, LARGE)
    return 100 * (of[kept_octave(rows)] / vertex(of)[1] - 1)


def moved_of(rows: pandas.DataFrame, name: Name) -> float:
    """Octaves from the small one's best rate to the large one's."""
    return vertex(means(rows, name, LARGE))[0] - vertex(means(rows, "sp", SMALL))[0]


def apart(rows: pandas.DataFrame, first: tuple[Name, int], second: tuple[Name, int]) -> float:
    """Percent by which the mean loss of the first parameterization at its octave is above that of the second, over the
    seeds that both have."""
    large = (
        rows[rows["width"] == LARGE[0]]
        .set_index(["parameterization", "octave", "seed"])
        .sort_index()["loss"]
        .astype(float)
    )
    both = pandas.concat([large.loc[of].fillna(math.inf) for of in (first, second)], axis=1, join="inner").mean()
    return 100 * float(both.iloc[0] / both.iloc[1] - 1)


def falls_of(rows: pandas.DataFrame, name: Name) -> float:
    """Percent from the mean loss at a fourth of the kept rate to that at a sixteenth."""
    kept = kept_octave(rows)
    return apart(rows, (name, kept - 4), (name, kept - 2))


def behind_of(rows: pandas.DataFrame, name: Name) -> float:
    """Percent by which the kept rate's mean loss is above that of "completep"."""
    kept = kept_octave(rows)
    return apart(rows, (name, kept), ("completep", kept))


def ahead_of(rows: pandas.DataFrame, name: Name) -> float:
    """Percent by which the kept rate's mean loss under "completep" is below the lowest one of `name`."""
    return 100 * (1 - means(rows, "completep", LARGE)[kept_octave(rows)] / min(means(rows, name, LARGE).values()))


def table(rows: pandas.DataFrame) -> str:
    """A row for each parameterization that has the kept rate, as Markdown."""
    lines, kept = [], kept_octave(rows)
    for name in SHIFTS:
        of = means(rows, name, LARGE)
        if kept not in of:
            continue
        shown = ", ".join(f"2^{o}: " + (f"{mean:.3f}" if math.isfinite(mean) else "diverged") for o, mean in of.items())
        figures = ["-", "-", "-", "-"]
        if len(of) > 1:
            moved, cost, above = moved_of(rows, name), cost_of(rows, name), above_vertex(rows, name)
            figures = [
                "-" if math.isnan(moved) else f"{moved:+.1f}",
                f"{'at least ' * (name == 'sp')}{cost:.1f}%" if math.isfinite(cost) else "diverges",
                "-" if math.isnan(above) else f"{above:.1f}%",
                answer(cost),
            ]
        lines.append((f"`{name}`", str(len(losses(rows, name, LARGE))), shown, *figures))
    columns = (
        "", "seeds", "loss at each rate of the small one", "moved, octaves", "costs", "above the vertex", "the rate"
    )  # fmt: skip
    return f"The small one's best rate is 2^{kept}.\n\n{markdown(columns, lines)}"


def table_in_short(rows: pandas.DataFrame) -> str:
    """README's: a row for each parameterization that has the kept rate. It loses so much against the best of the rates
    tried, and against the vertex."""
    lines, kept = [], kept_octave(rows)
    for name, words in WORDS.items():
        of = means(rows, name, LARGE)
        if kept not in of:
            continue
        lost, lowest = "not measured", "-"
        if len(of) > 1:
            above, cost = above_vertex(rows, name), cost_of(rows, name)
            between = f"{cost:.1f} to {above:.1f}%" if math.isfinite(above) else f"{cost:.1f}% or more"
            lost = between if math.isfinite(cost) else "all"
            lowest = f"{min(of.values()):.2f}"
        lines.append((words, f"{of[kept]:.2f}" if math.isfinite(of[kept]) else "diverges", lowest, lost))
    columns = ("what is rescaled", "loss at the rate tuned small", "lowest loss tried", "the tuned rate loses")
    return markdown(columns, lines)


def picture(rows: pandas.DataFrame) -> Figure:
    """For "sp" and "completep" the mean loss against the learning rate, of the small and of the large size."""
    sizes = {"0.5 million parameters": SMALL, "101 million": LARGE}
    ends = 2.0 ** (rows["octave"].min() - 0.5), 2.0 ** (rows["octave"].max() + 0.5)

    def content(name: Name, panel: Axes) -> None:
        named = name == "completep"  # one legend for both panels
        for (label, size), color in zip(sizes.items(), size_colors(2), strict=True):
            of = {2.0**octave: mean for octave, mean in means(rows, name, size).items() if math.isfinite(mean)}
            panel.plot([*of], [*of.values()], "o-", color=color, label=label if named else None)
            panel.plot(*min(of.items(), key=lambda point: point[1]), "*", color=color, ms=16)
        small = "best rate of the small one" if named else None
        panel.axvline(2.0 ** kept_octave(rows), color="gray", ls="--", lw=1, label=small)
        panel.set_xscale("log", base=2)
        panel.set_xlim(*ends)

    return panels(
        {WORDS[name].replace("`", ""): functools.partial(content, name) for name in ("sp", "completep")},
        "learning rate", "loss on held-out text",
    )  # fmt: skip


def draw() -> None:
    """README's picture."""
    save(IMAGES, {"hundred_million": picture(read())})


QUANTITIES = {"ahead": ahead_of, "behind": behind_of, "cost": cost_of, "falls": falls_of, "moved": moved_of}


def quantity(of: str) -> Interval:
    """Of the committed rows: "cost completep", or another of QUANTITIES."""
    what, name = of.split()
    return Interval(QUANTITIES[what](read(), name), math.nan, math.nan)  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line.parser("experiments.hundred_million", __doc__)
    parser.add_argument("--table", action="store_true", help="print it, and train nothing")
    if not parser.parse_args(arguments).table:
        prepare_cpu()
        while left := missing(read()):
            row = {**left[0]._asdict(), "loss": train(left[0])}
            replace(ROWS, pandas.DataFrame([row]), Trial._fields)
            print(f"{left[0]}: {row['loss']:.4f}", flush=True)
    print(table(read()))


if __name__ == "__main__":
    main()

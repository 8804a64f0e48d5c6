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
from typing import Any, NamedTuple

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
from depthmup.data.text import docstrings
from depthmup.rules.parameterization import Name
from experiments import command_line, gpt_linen
from experiments.figures.figure import IMAGES, panels, save
from experiments.language import CHANCE, CONTEXT, loss
from experiments.large_runs import answer
from experiments.output import Interval, markdown
from experiments.published import RESULTS, replace

ROWS = RESULTS / "hundred_million.parquet"
SMALL, LARGE = (128, 2), (1024, 8)
RULES: tuple[Name, ...] = ("completep", "sp", "mup")
OCTAVES = range(-10, -3)  # of the small one's rates: log2
SHIFTS = {
    "completep": (0, -1, 1),
    "sp": (0, -4, -2),
    "mup": (0,),
}  # octaves from its best rate, in the order of training
WORDS: dict[Name, str] = {
    "sp": "nothing rescaled (`sp`)",
    "mup": "by width (`mup`)",
    "completep": "by width and depth (`completep`)",
}
SEEDS, STEPS, BATCH = 3, 192, 16
WATCHED = 16  # steps between two looks at the loss
HELD_OUT = 256  # windows of the last tenth of the text


class Trial(NamedTuple):
    """octave: log2 of the learning rate at the small size."""

    parameterization: Name
    width: int
    depth: int
    octave: int
    seed: int


def windows(low: float, high: float, key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Windows from this part of NumPy's docstrings, each byte with the next one as its target."""
    text = jnp.asarray(docstrings(), jnp.int32)
    ends = int(low * len(text)), int(high * len(text)) - CONTEXT
    starts = jax.random.randint(key, (count, 1), *ends)
    cut = text[starts + jnp.arange(CONTEXT + 1)]
    return cut[:, :-1], cut[:, 1:]


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


def losses(rows: pandas.DataFrame, name: Name, size: tuple[int, int]) -> dict[int, list[float]]:
    """{octave: losses of all seeds}; inf where a training diverged. At the small size all are "sp"."""
    of = rows[(rows[["parameterization", "width", "depth"]] == [name if size == LARGE else "sp", *size]).all(axis=1)]
    return {int(octave): list(group["loss"].fillna(math.inf)) for octave, group in of.groupby("octave")}


def best_octave(of: dict[int, list[float]]) -> int:
    return min(of, key=lambda octave: float(np.mean(of[octave])))


def missing(rows: pandas.DataFrame) -> list[Trial]:
    """What is still to train, in order; at the large size of one seed after the other."""
    done = {Trial(*of) for of in rows[[*Trial._fields]].itertuples(index=False, name=None)}
    small = [Trial("sp", *SMALL, octave, seed) for octave in OCTAVES for seed in range(SEEDS)]
    if left := [trial for trial in small if trial not in done]:
        return left
    kept = best_octave(losses(rows, "sp", SMALL))
    for seed in range(SEEDS):
        large = [Trial(name, *LARGE, kept + shift, seed) for name in RULES for shift in SHIFTS[name]]
        at_end = losses(rows, "completep", LARGE)
        if left := [trial for trial in large if trial not in done]:
            return left
        best = best_octave(at_end)
        large = [Trial("completep", *LARGE, octave, s) for octave in range(best - 1, best + 2) for s in range(seed + 1)]
        if left := [trial for trial in large if trial not in done]:
            return left
    return []


def vertex(of: dict[int, list[float]]) -> float:
    """log2 of the best rate, by the parabola; NaN where a neighbour was not trained or diverged."""
    best = best_octave(of)
    if not {best - 1, best + 1} <= set(of):
        return math.nan
    low, middle, high = (float(np.log(np.mean(of[octave]))) for octave in (best - 1, best, best + 1))
    curvature = low + high - 2 * middle
    return best + (low - high) / 2 / curvature if math.isfinite(curvature) and curvature > 0 else math.nan


def least_of(of: dict[int, list[float]]) -> float:
    """The loss at the vertex of that parabola, which lies below the lowest of the rates; NaN without one."""
    best = best_octave(of)
    if math.isnan(place := vertex(of)):
        return math.nan
    low, middle, high = (float(np.log(np.mean(of[octave]))) for octave in (best - 1, best, best + 1))
    return math.exp(middle - (low + high - 2 * middle) / 2 * (place - best) ** 2)


def cost_of(rows: pandas.DataFrame, name: Name) -> float:
    """Percent by which the kept rate's mean loss is above the lowest."""
    of = losses(rows, name, LARGE)
    kept, lowest = np.mean(of[best_octave(losses(rows, "sp", SMALL))]), np.mean(of[best_octave(of)])
    return 100 * float(kept / lowest - 1)


def moved_of(rows: pandas.DataFrame, name: Name) -> float:
    """Octaves from the small one's best rate to the large one's."""
    return vertex(losses(rows, name, LARGE)) - vertex(losses(rows, "sp", SMALL))


def ahead_of(rows: pandas.DataFrame) -> float:
    """Percent by which the kept rate's loss under "completep" is below the lowest one of "sp"."""
    kept = losses(rows, "completep", LARGE)[best_octave(losses(rows, "sp", SMALL))]
    lowest = min(float(np.mean(of)) for of in losses(rows, "sp", LARGE).values())
    return 100 * (1 - float(np.mean(kept)) / lowest)


def above_vertex(rows: pandas.DataFrame, name: Name) -> float:
    """Percent by which the kept rate's mean loss is above `least_of`."""
    of = losses(rows, name, LARGE)
    return 100 * (float(np.mean(of[best_octave(losses(rows, "sp", SMALL))])) / least_of(of) - 1)


def table(rows: pandas.DataFrame) -> str:
    """A row for each parameterization, as Markdown."""
    lines, kept = [], best_octave(losses(rows, "sp", SMALL))
    for name in RULES:
        of = losses(rows, name, LARGE)
        if kept not in of:
            continue
        means = {octave: float(np.mean(values)) for octave, values in sorted(of.items())}
        shown = ", ".join(
            f"2^{o}: " + (f"{mean:.3f}" if math.isfinite(mean) else "diverged") for o, mean in means.items()
        )
        cells = ["-", "-", "-", "-"]
        if len(of) > 1:
            moved, cost, above = moved_of(rows, name), cost_of(rows, name), above_vertex(rows, name)
            cells = [
                "-" if math.isnan(moved) else f"{moved:+.1f}",
                f"{'at least ' * (name == 'sp')}{cost:.1f}%" if math.isfinite(cost) else "diverges",
                "-" if math.isnan(above) else f"{above:.1f}%",
                answer(cost),
            ]
        lines.append((f"`{name}`", str(len(of[kept])), shown, *cells))
    columns = (
        "", "seeds", "loss at each rate of the small one", "moved, octaves", "costs", "above the vertex", "the rate"
    )  # fmt: skip
    return f"The small one's best rate is 2^{kept}.\n\n{markdown(columns, lines)}"


def table_in_short(rows: pandas.DataFrame) -> str:
    """README's: a row for each parameterization."""
    lines, kept = [], best_octave(losses(rows, "sp", SMALL))
    for name, words in WORDS.items():
        of = losses(rows, name, LARGE)
        means = {octave: float(np.mean(values)) for octave, values in of.items()}
        cost, lowest = "not measured", "-"
        if len(of) > 1:
            above, price = above_vertex(rows, name), cost_of(rows, name)
            lowest = f"{min(means.values()):.2f}"
            cost = (
                f"{above:.1f}%" if math.isfinite(above) else f"at least {price:.1f}%" if math.isfinite(price) else "all"
            )
        lines.append((words, f"{means[kept]:.2f}" if math.isfinite(means[kept]) else "diverges", lowest, cost))
    columns = ("learning rates rescaled", "loss at the rate tuned small", "lowest loss tried", "that rate loses")
    return markdown(columns, lines)


def picture(rows: pandas.DataFrame) -> Figure:
    """For each parameterization the mean loss against the learning rate, of the small and of the large size."""
    kept, colors = best_octave(losses(rows, "sp", SMALL)), size_colors(2)
    sizes = {"0.5 million parameters": SMALL, "101 million": LARGE}
    ends = 2.0 ** (rows["octave"].min() - 0.5), 2.0 ** (rows["octave"].max() + 0.5)

    def content(name: Name, panel: Axes) -> None:
        for (label, size), color in zip(sizes.items(), colors, strict=True):
            of = {o: float(np.mean(values)) for o, values in sorted(losses(rows, name, size).items())}
            of = {octave: mean for octave, mean in of.items() if math.isfinite(mean)}
            rates, best = [2.0**octave for octave in of], best_octave({o: [mean] for o, mean in of.items()})
            panel.plot(rates, list(of.values()), "o-", color=color, label=label if name == "completep" else None)
            panel.plot(2.0**best, of[best], "*", color=color, ms=16)
        rate = "best rate of the small one" if name == "completep" else None
        panel.axvline(2.0**kept, color="gray", ls="--", lw=1, label=rate)
        panel.set_xscale("log", base=2)
        panel.set_xlim(*ends)

    return panels(
        {WORDS[name].replace("`", ""): functools.partial(content, name) for name in ("sp", "completep")},
        "learning rate", "loss on held-out text",
    )  # fmt: skip


def draw() -> None:
    """README's picture."""
    save(IMAGES, {"hundred_million": picture(read())})


def falls_of(rows: pandas.DataFrame, name: Name) -> float:
    """Percent from the mean loss at a fourth of the kept rate to that at a sixteenth."""
    of, kept = losses(rows, name, LARGE), best_octave(losses(rows, "sp", SMALL))
    return 100 * float(np.mean(of[kept - 4]) / np.mean(of[kept - 2]) - 1)


def behind_of(rows: pandas.DataFrame, name: Name) -> float:
    """Percent by which the kept rate's mean loss is above that of "completep"."""
    kept = best_octave(losses(rows, "sp", SMALL))
    return 100 * float(np.mean(losses(rows, name, LARGE)[kept]) / np.mean(losses(rows, "completep", LARGE)[kept]) - 1)


QUANTITIES = {"behind": behind_of, "cost": cost_of, "moved": moved_of, "falls": falls_of}


def quantity(of: str) -> Interval:
    """Of the committed rows: "cost completep", "moved sp", "falls sp", "behind mup", "ahead"."""
    what, *name = of.split()
    value = QUANTITIES[what](read(), *name) if name else ahead_of(read())  # type: ignore[arg-type]
    return Interval(value, math.nan, math.nan)


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

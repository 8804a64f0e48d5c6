"""Does the best learning rate of a language model transfer? GPTs as their users write them, swept by `m.sweep`.

    python -m experiments.language          # trains what is missing, writes its rows: some hours of two cores
    python -m experiments.language muon     # this case
    python -m experiments.documents         # the tables and pictures of docs/language.md, from the rows

gpt_linen.py and gpt_nnx.py know nothing of depthmup; here are `dm.setup` and `m.sweep` on bytes of NumPy's docstrings.
docs/language.md has the questions, the predictions and what came out.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.data.text import docstrings
from depthmup.rules.parameterization import Name
from depthmup.sweep import judge
from depthmup.trials.verdicts import TransferCurve
from experiments import command_line, gpt_linen, gpt_nnx
from experiments.figures.figure import IMAGES, along, best_losses, cells, loss_pictures, save
from experiments.output import markdown, percent
from experiments.published import RESULTS, ROOT, replace

RUNS, ROWS = ROOT / "runs" / "language", RESULTS / "language.parquet"
COLUMNS = ["optimizer", "parameterization", "width", "depth", "learning_rate", "seed", "loss", "diverged"]
BASE, CONTEXT = (32, 2), 32
CHANCE = math.log(gpt_linen.VOCABULARY)
# Arguments of `m.sweep`. Depths are compared at the base width, widths at the base depth.
SWEEP: dict[str, Any] = {
    "widths": (32, 64, 128, 256), "depths": (2, 4, 8, 16, 32), "learning_rates": 2.0 ** np.arange(-10, -2.9, 0.5),
    "adaptive": True, "seeds": 3, "steps": 300,
}  # fmt: skip

TABLE = ("model", "along", "best learning rate: drift, verdict, cost", "best loss at each size")
# Parameterizations whose best losses over depth are compared, and the optimizer.
PAIRS = (("completep", "depth_mup", "adamw"), ("depth_ode", "depth_mup", "muon"))


class Case(NamedTuple):
    """A model, and how it is trained. suffix: of the names of its parameterizations in the tables."""

    factory: Callable[..., Any]
    parameterizations: Sequence[Name]
    optimizer: str = "adamw"
    suffix: str = ""


CASES = {
    "adamw": Case(gpt_linen.GPT, ("sp", "mup", "depth_mup", "completep")),
    "muon": Case(gpt_linen.GPT, ("depth_mup", "depth_ode"), "muon"),
    "nnx": Case(gpt_nnx.GPT, ("depth_mup",), suffix=" nnx"),
}


def setup(parameterization: Name, factory: Callable[..., Any], **options: Any) -> dm.Setup:
    """The model at the base shape."""
    tokens = jnp.zeros((1, CONTEXT), jnp.int32)
    return dm.setup(parameterization, factory, tokens, width=BASE[0], depth=BASE[1], base=BASE, **options)


def loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def windows(low: float, high: float, key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Windows of NumPy's docstrings between these shares of the text, each byte with the next one as its target."""
    text = jnp.asarray(docstrings(), jnp.int32)
    starts = jax.random.randint(key, (count, 1), int(low * len(text)), int(high * len(text)) - CONTEXT)
    cut = text[starts + jnp.arange(CONTEXT + 1)]
    return cut[:, :-1], cut[:, 1:]


def batches(step: jax.Array, batch_size: int) -> tuple[jax.Array, jax.Array]:
    """Windows of the whole text."""
    return windows(0.0, 1.0, jax.random.fold_in(jax.random.key(1), step), batch_size)


def sweep(m: dm.Setup, workdir: Path, batch: int = 16, **options: Any) -> pandas.DataFrame:
    """The rows of `m.sweep` on `batch` sequences a step, with the columns `COLUMNS`."""
    result = m.sweep(
        loss,
        functools.partial(batches, batch_size=batch),
        warmup=options["steps"] // 10,
        chance=CHANCE,
        workdir=workdir,
        **options,
    )
    return result.rows.assign(loss=result.rows["last_loss"])[COLUMNS]


def train(name: str) -> pandas.DataFrame:
    """Train what is missing of a case in its workdir, runs/language/NAME: its rows."""
    case = CASES[name]
    first, *others = case.parameterizations
    m = setup(first, case.factory, fan_in_init=True)
    rows = sweep(m, RUNS / name, optimizer=case.optimizer, against=others, **SWEEP)
    return rows.assign(parameterization=rows["parameterization"] + case.suffix)


def published() -> list[TransferCurve]:
    """The curves of the committed rows."""
    return list(judge(pandas.read_parquet(ROWS), chance=CHANCE).curves)


def merged(curves: Sequence[TransferCurve]) -> list[TransferCurve]:
    """Curves of the same trainings (`mup` and `depth_mup` at the base depth) are one curve with all their names."""
    kept: dict[tuple[str, str, bytes], TransferCurve] = {}
    for c in curves:
        key = (c.optimizer, c.axis, c.trials["loss"].to_numpy().tobytes())
        name = f"{kept[key].name} = {c.name}" if key in kept else c.name
        kept[key] = dataclasses.replace(c, parameterization=name)
    return list(kept.values())


def tables() -> str:
    """What the rows say, as Markdown."""
    curves, rows, best = published(), [], {}
    for c in curves:
        best[c.name, c.optimizer, c.axis] = [best_losses(c.result, i) for i in range(len(c.result.values))]
    for c in merged(curves):
        drift, cost, verdict = cells(c)
        losses = best[c.name.split(" = ")[0], c.optimizer, c.axis]
        means = " ".join(f"{at_size.mean():.3f}" for at_size in losses)
        rows.append((f"{c.name}, {c.optimizer}", c.axis, ", ".join(filter(None, (drift, verdict, cost))), means))
    parts = [markdown(TABLE, rows), *(f"![{name}](images/language/{name}.png)" for name in along((), "gpt"))]
    for name, other, optimizer in PAIRS:
        losses, others = (best[parameterization, optimizer, "depth"] for parameterization in (name, other))
        changes = compared(losses, others, SWEEP["depths"])
        parts.append(f"Best loss of `{name}` against `{other}` with {optimizer} (paired seeds): {changes}.")
    return "\n\n".join(parts)


def draw() -> None:
    """Write the pictures."""
    save(IMAGES / "language", loss_pictures(along(merged(published()), "gpt")))


def compared(best: list[np.ndarray], others: list[np.ndarray], depths: tuple[int, ...]) -> str:
    """How the best losses of two parameterizations, (seeds,) at each depth, differ above the base depth."""
    pairs = list(zip(best, others, depths, strict=True))[1:]
    return ", ".join(f"{percent(a / b).text('+.1f', '%')} at depth {depth}" for a, b, depth in pairs)


def main() -> None:
    cases = command_line.parser("experiments.language", __doc__, "case", CASES).parse_args().cases
    prepare_cpu()
    for case in cases:
        replace(ROWS, train(case), ["optimizer", "parameterization"])
    print(tables())


if __name__ == "__main__":
    main()

"""The sweeps of language models: which there are, how `m.sweep` trains one, and their committed rows."""

from __future__ import annotations

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
from depthmup.data.text import docstrings
from depthmup.parameterization import Name
from depthmup.report.result import SweepResult
from depthmup.sweep import judge
from experiments.language import gpt_linen, gpt_nnx
from experiments.published import RESULTS, ROOT

RUNS, ROWS = ROOT / "runs" / "language", RESULTS / "language.parquet"
COLUMNS = ["optimizer", "parameterization", "width", "depth", "learning_rate", "seed", "loss", "diverged"]
BASE, CONTEXT = (32, 2), 32
CHANCE = math.log(gpt_linen.VOCABULARY)
# Arguments of `m.sweep`. Depths are compared at the base width, widths at the base depth.
SWEEP: dict[str, Any] = {
    "widths": (32, 64, 128, 256), "depths": (2, 4, 8, 16, 32), "learning_rates": 2.0 ** np.arange(-10, -2.9, 0.5),
    "adaptive": True, "seeds": 3, "steps": 300,
}  # fmt: skip


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


def batches(step: jax.Array, batch_size: int) -> tuple[jax.Array, jax.Array]:
    """Windows of NumPy's docstrings, each byte with the next one as its target."""
    text = jnp.asarray(docstrings(), jnp.int32)
    key = jax.random.fold_in(jax.random.key(1), step)
    starts = jax.random.randint(key, (batch_size, 1), 0, len(text) - CONTEXT)
    windows = text[starts + jnp.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, 1:]


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


def published() -> SweepResult:
    """What the committed rows say."""
    return judge(pandas.read_parquet(ROWS), chance=CHANCE)

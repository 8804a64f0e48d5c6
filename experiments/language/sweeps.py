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
from depthmup.files import write_atomically
from depthmup.parameterization import Name
from depthmup.report.result import SweepResult
from depthmup.sweep import judge
from experiments.language import gpt_linen, gpt_nnx
from experiments.published import RESULTS, ROOT

RUNS = ROOT / "runs" / "language"
COLUMNS = ["optimizer", "parameterization", "width", "depth", "learning_rate", "seed", "loss", "diverged"]
BASE, CONTEXT = (32, 2), 32
CHANCE = math.log(gpt_linen.VOCABULARY)
# Arguments of `m.sweep`. Depths are compared at the base width, widths at the base depth.
SCALES: dict[str, dict[str, Any]] = {
    "demo": {
        "widths": (32, 64, 128), "depths": (2, 4, 8, 16), "learning_rates": 2.0 ** np.arange(-11, -2), "per_octave": 1,
        "seeds": 2, "steps": 150,
    },
    "study": {
        "widths": (32, 64, 128, 256), "depths": (2, 4, 8, 16, 32), "learning_rates": 2.0 ** np.arange(-10, -2.9, 0.5),
        "adaptive": True, "seeds": 3, "steps": 300,
    },
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


def sweep(m: dm.Setup, workdir: Path, batch: int = 16, **options: Any) -> tuple[SweepResult, pandas.DataFrame]:
    """(what `m.sweep` says, its rows with the columns `COLUMNS`) on `batch` sequences a step."""
    result = m.sweep(
        loss,
        functools.partial(batches, batch_size=batch),
        warmup=options["steps"] // 10,
        chance=CHANCE,
        workdir=workdir,
        **options,
    )
    return result, result.rows.assign(loss=result.rows["last_loss"])[COLUMNS]


def train(name: str, scale: str) -> SweepResult:
    """Train what is missing of a case in its workdir, runs/language/SCALE_NAME; write its rows there."""
    case, folder = CASES[name], RUNS / f"{scale}_{name}"
    first, *others = case.parameterizations
    m = setup(first, case.factory, fan_in_init=True)
    result, rows = sweep(m, folder, optimizer=case.optimizer, against=others, **SCALES[scale])
    rows["parameterization"] += case.suffix
    write_atomically(folder / "published.parquet", rows.to_parquet(index=False))
    return result


def publish(scale: str) -> Path:
    """Commit the rows of all cases. Raises FileNotFoundError for a case that is not finished."""
    rows = [pandas.read_parquet(RUNS / f"{scale}_{name}" / "published.parquet") for name in CASES]
    path = RESULTS / f"language_{scale}.parquet"
    write_atomically(path, pandas.concat(rows).to_parquet(index=False, compression="zstd"))
    return path


def published(scale: str) -> SweepResult:
    """What the committed rows of a scale say."""
    return judge(pandas.read_parquet(RESULTS / f"language_{scale}.parquet"), chance=CHANCE)

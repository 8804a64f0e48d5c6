"""The trainings: which there are, one program for each shape, rows that are kept."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas

import depthmup as dm
from depthmup.files import write_atomically
from depthmup.parameterization import Name
from experiments.language import gpt_linen, gpt_nnx
from experiments.language.text import corpus, digest
from experiments.published import RESULTS

ROWS = RESULTS / "language"


class Scale(NamedTuple):
    """Sizes of the trainings; depths are compared at the base width, widths at the base depth.

    reach: a shape trains every second learning rate with the first seed, and has rows for all seeds at the
    2 * reach + 1 learning rates around the best of those (at the edge of the grid, the 2 * reach + 1 nearest to it).
    None: the whole grid.
    """

    base: tuple[int, int]
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    octaves: tuple[float, ...]  # log2 of the learning rates
    seeds: int
    steps: int
    batch: int
    context: int
    reach: int | None = None

    @property
    def shapes(self) -> list[tuple[int, int]]:
        width, depth = self.base
        return list(dict.fromkeys([(width, d) for d in self.depths] + [(w, depth) for w in self.widths]))


SCALES = {
    "demo": Scale((32, 2), (32, 64, 128), (2, 4, 8, 16), tuple(range(-11, -2)), 2, 150, 16, 32),
    "study": Scale((32, 2), (32, 64, 128, 256), (2, 4, 8, 16, 32), tuple(np.arange(-10, -2.9, 0.5)), 3, 300, 16, 32, 3),
}


class Case(NamedTuple):
    """A model and how it is trained."""

    factory: Callable[..., Any]
    parameterization: Name
    optimizer: str = "adamw"


CASES = {
    "sp": Case(gpt_linen.GPT, "sp"),
    "mup": Case(gpt_linen.GPT, "mup"),
    "depth_mup": Case(gpt_linen.GPT, "depth_mup"),
    "completep": Case(gpt_linen.GPT, "completep"),
    "depth_mup_muon": Case(gpt_linen.GPT, "depth_mup", "muon"),
    "depth_ode_muon": Case(gpt_linen.GPT, "depth_ode", "muon"),
    "depth_mup_nnx": Case(gpt_nnx.GPT, "depth_mup"),
}


def twin(name: str, scale: str, width: int, depth: int) -> str:
    """The case whose trainings are the same ones: at the base depth depth_mup and completep are mup, which at the base
    width is sp, and depth_ode is depth_mup.
    """
    base_width, base_depth = SCALES[scale].base
    if name == "depth_ode_muon" and depth == base_depth:
        return "depth_mup_muon"
    if name in ("depth_mup", "completep") and depth == base_depth:
        name = "mup"
    return "sp" if name == "mup" and width == base_width else name


def identity(name: str, scale: str) -> dict[str, Any]:
    """What decides the rows of a case; compared before rows are used again."""
    case = CASES[name]
    model = f"{case.factory.__module__.rsplit('.', 1)[-1]}, {case.parameterization}, {case.optimizer}"
    return {"case": model, "scale": json.loads(json.dumps(SCALES[scale]._asdict())), "text": digest()}


def read(name: str, scale: str) -> pandas.DataFrame:
    """The rows of a case that are there. Raises ValueError if they come from other settings."""
    file = ROWS / f"{scale}_{name}.parquet"
    if not file.exists():
        return pandas.DataFrame({"width": [], "depth": []})
    about = json.loads(file.with_suffix(".json").read_text())
    for key, value in identity(name, scale).items():
        if about[key] != value and key != "text":
            raise ValueError(f"{file} comes from another {key}, {about[key]} instead of {value}: delete it")
    return pandas.read_parquet(file)


def train(name: str, scale: str, say: Callable[[str], None] = print, *, depths: Collection[int] | None = None) -> None:
    """Train what is missing of a case, shape by shape; rows are written after each. Rows of a twin are copied.

    depths: only these; None: all of the scale.
    """
    own, rows = SCALES[scale], read(name, scale)
    for width, depth in own.shapes:
        if len(of_shape(rows, width, depth)) or (depths is not None and depth not in depths):
            continue
        same = twin(name, scale, width, depth)
        found = of_shape(read(same, scale), width, depth)
        say(f"{name}: width {width}, depth {depth}" + (f", as {same}" if len(found) else ""))
        found = found if len(found) else pandas.DataFrame(trials(CASES[name], own, width, depth))
        rows = pandas.concat([rows, found], ignore_index=True)
        ROWS.mkdir(parents=True, exist_ok=True)
        file = ROWS / f"{scale}_{name}.parquet"
        there = set(zip(rows["width"], rows["depth"], strict=True))
        about = {**identity(name, scale), "complete": there == set(own.shapes)}
        write_atomically(file, rows.to_parquet(index=False))
        write_atomically(file.with_suffix(".json"), (json.dumps(about, indent=1) + "\n").encode())


def of_shape(rows: pandas.DataFrame, width: int, depth: int) -> pandas.DataFrame:
    return rows[(rows["width"] == width) & (rows["depth"] == depth)]


def trials(case: Case, scale: Scale, width: int, depth: int) -> list[dict[str, Any]]:
    """The rows of a case at one shape, as `trained` returns them."""
    tokens = jnp.zeros((1, scale.context), jnp.int32)
    m = dm.setup(
        case.parameterization, case.factory, tokens, width=width, depth=depth, base=scale.base, fan_in_init=True
    )
    return [{"width": width, "depth": depth, **row} for row in trained(m, case.optimizer, scale)]


def trained(m: dm.Setup, optimizer: str, scale: Scale) -> list[dict[str, Any]]:
    """A row for each learning rate near the best and each seed.

    loss: the mean training loss over the last tenth of the steps, NaN if the training diverged.
    """
    text = jnp.asarray(corpus(), jnp.int32)
    warm = optax.linear_schedule(0.0, 1.0, max(1, scale.steps // 10))

    def train_once(rate: jax.Array, seed: jax.Array) -> jax.Array:
        params, state = m.fresh(jax.random.key(seed))
        tx = m.optimizer(optimizer, lambda step: rate * warm(step))

        def loss(params: Any, window: jax.Array) -> jax.Array:
            logits, _ = m.model.run(params, state, window[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, window[:, 1:]).mean()

        def step(carry: Any, key: jax.Array) -> Any:
            params, kept = carry
            starts = jax.random.randint(key, (scale.batch, 1), 0, len(text) - scale.context - 1)
            value, grads = jax.value_and_grad(loss)(params, text[starts + jnp.arange(scale.context + 1)])
            updates, kept = tx.update(grads, kept, params)
            return (optax.apply_updates(params, updates), kept), value

        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), seed), scale.steps)
        return jax.lax.scan(step, (params, tx.init(params)), keys)[1]

    program = jax.jit(train_once)  # one for all trainings of a shape

    @functools.cache
    def loss(rate: float, seed: int) -> float:
        curve = np.asarray(program(jnp.float32(rate), seed), np.float64)
        last = curve[-max(1, scale.steps // 10) :].mean()
        return math.nan if not np.isfinite(curve).all() or last > curve[0] + 1 else float(last)

    rates = [2.0**x for x in scale.octaves]
    if scale.reach is not None:
        first = [loss(rate, 0) for rate in rates[::2]]
        best = 2 * int(np.nanargmin(first)) if np.isfinite(first).any() else 0
        window = 2 * scale.reach + 1
        start = min(max(0, best - scale.reach), len(rates) - window)
        rates = rates[start : start + window]
    grid = itertools.product(rates, range(scale.seeds))
    rows = [{"learning_rate": r, "seed": s, "loss": loss(r, s)} for r, s in grid]
    return [{**row, "diverged": math.isnan(row["loss"])} for row in rows]

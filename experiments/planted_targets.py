"""Does the answer of `m.tune(target=)` hold where the truth is planted?

    python -m experiments.planted_targets    # 20 targets of a minute each; goes on where it stopped
    python -m experiments.documents          # a line of docs/large-run.md, from docs/results/planted_targets.json

A multilayer perceptron is trained, and its loss is a formula: of its width, of the examples and the steps that it has
seen, and of the learning rate that its updates have. So `m.tune` chooses, trains, times and stores as it does with any
model, and the best rate of the target is known. `Truth` has the formula: a power law of the loss in width and data,
a valley that is steeper above its optimum, and an optimum that is a plane in the logarithms of the sizes, which bends
at a critical batch size in every other truth. Its exponents are drawn once for each target, and each size's optimum
scatters about it. Noise is that of a seed.

The base is 16 wide with batches of 8 and 50 steps; the target has 4 times the width, 4 times the batch and 8 times the
steps. The budget is a minute, and the trainings of one size show seconds that differ as they do in life.

**Predictions**, written before the first of the 20.

- The answer is confirmed for at least 19 of the 20 targets.
- The median of the measured costs is below 1%.

**Rule of decision.** A target is confirmed if the interval that `m.tune` prints holds the planted optimum, and the
answer costs at most the 97.5% cost by the planted loss.
"""

from __future__ import annotations

import functools
import json
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.files import write_atomically
from depthmup.names import percent
from experiments import command_line
from experiments.published import RESULTS, ROOT

RUNS, OUT = ROOT / "runs" / "planted_targets", RESULTS / "planted_targets.json"
TARGETS, BUDGET = 20, "60s"
BASE = {"width": 16, "batch_size": 8, "steps": 50}
TARGET = {"width": 64, "batch_size": 32, "steps": 400}
RATE, LAST = 0, 0.95  # the logit that sums the updates; what share of the steps the mean of the last tenth stands for


class Truth(NamedTuple):
    """The planted loss. exponents: of the best rate in width, batch size and steps. critical: log2 of the batch size at
    which the plane bends, for the data of the base; None: it does not bend. scatter: octaves of each size's optimum
    about the plane. noise: of a seed, a share of the loss."""

    exponents: tuple[float, float, float]
    critical: float | None
    scatter: float
    noise: float = 0.003

    @classmethod
    def draw(cls, number: int) -> Truth:
        rng = np.random.default_rng([66, number])
        exponents = rng.uniform(-1.1, 0.1), rng.uniform(0.1, 0.7), rng.uniform(-0.5, 0.0)
        critical = rng.uniform(2.5, 5.5) if number % 2 else None
        return cls(exponents, critical, scatter=rng.uniform(0.0, 0.3))

    def optimum(self, width: Any, batch: Any, steps: Any) -> Any:
        """log2 of the best rate."""
        w, b, t = (jnp.log2(size / base) for size, base in zip((width, batch, steps), BASE.values(), strict=True))
        value = -6 + jnp.dot(jnp.array(self.exponents), jnp.array([w, b, t]))
        if self.critical is not None:  # which grows as the root of the data
            above = b + 3 - self.critical - (b + t) / 2
            value -= 0.7 * 0.5 * jnp.logaddexp(0.0, above / 0.5)
        place = (jnp.round(octaves).astype(jnp.int32) for octaves in (w, b, t))
        key = functools.reduce(jax.random.fold_in, place, jax.random.key(round(1e6 * self.scatter)))
        return value + self.scatter * jax.random.normal(key)

    def loss(self, width: Any, batch: Any, steps: Any, rate: Any) -> Any:
        """Without noise; rate: log2."""
        off = rate - self.optimum(width, batch, steps)
        bowl = jnp.where(off < 0, 0.012 * off**2, 0.096 * (jnp.exp(off / 2) - 1 - off / 2))
        data = batch * steps / (BASE["batch_size"] * BASE["steps"])
        floor = 1.6 + 0.7 * (width / BASE["width"]) ** -0.6 + 0.6 * data**-0.25
        return floor * jnp.exp(bowl)

    def cost(self, rate: float) -> float:
        """Of a rate at the target, as a share of the loss."""
        sizes = TARGET["width"], TARGET["batch_size"], LAST * TARGET["steps"]
        best = self.optimum(*sizes)
        return float(self.loss(*sizes, math.log2(rate)) / self.loss(*sizes, best)) - 1


class Perceptron(nn.Module):
    """Its logits are the biases of its readout and its width: the readout's weights are 0 and are not trained."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in range(1 + self.depth):
            x = nn.relu(nn.Dense(self.width, name=f"layer_{layer}")(x))
        logits = nn.Dense(2, kernel_init=nn.initializers.zeros, bias_init=_bias, name="readout")(x)
        return jnp.concatenate([logits, jnp.full((len(x), 1), float(self.width))], axis=1)


def _bias(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """0, where updates are summed, and the noise of the seed."""
    return jnp.array([0.0, 1.0], dtype) * jax.random.normal(key, shape, dtype)


def updates(m: dm.Setup, **_: Any) -> optax.GradientTransformation:
    """1 for the entry that sums updates, so that it is the learning rate times the steps; 0 for all others."""

    def update(gradients: Any, _: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, gradients)
        bias = zeros["readout"]["bias"].at[RATE].set(-1.0)
        return {**zeros, "readout": {**zeros["readout"], "bias": bias}}

    return optax.stateless(update)


def batches(step: jax.Array, batch_size: int) -> tuple[jax.Array, jax.Array]:
    """Inputs, and the number of the step for each of them."""
    key = jax.random.fold_in(jax.random.key(0), step)
    return jax.random.normal(key, (batch_size, 16)), jnp.full(batch_size, step, jnp.float32)


def planted_loss(truth: Truth, logits: jax.Array, steps: jax.Array) -> jax.Array:
    """The formula, of the logits of a batch and of the number of the step."""
    step = jnp.maximum(steps[0], 1.0)
    (updated, noise, width), batch = jnp.abs(logits[0]), float(len(logits))
    rate = jnp.log2(jnp.maximum(updated / step, 1e-12))
    return truth.loss(width, batch, step, rate) * jnp.exp(truth.noise * noise)


def run(number: int) -> dict[str, float]:
    """Tune to a planted target."""
    truth = Truth.draw(number)
    m = dm.setup("sp", Perceptron, jnp.zeros((1, 16)), width=BASE["width"], depth=1, residual=False)
    answer = m.tune(
        functools.partial(planted_loss, truth),
        batches,
        optimizer=updates,
        learning_rate=2.0**-6,
        batch_size=BASE["batch_size"],
        steps=BASE["steps"],
        target=TARGET,
        budget=BUDGET,
        workdir=RUNS / str(number),
    )
    p = answer.prediction
    if p is None:
        raise SystemExit("no law: the budget is too small")
    best = 2 ** float(truth.optimum(TARGET["width"], TARGET["batch_size"], LAST * TARGET["steps"]))
    return {
        "answer": p.learning_rate,
        "low": p.low,
        "high": p.high,
        "worst_cost": p.worst_cost,
        "trainings": len(answer.rows),
        "best": best,
        "cost": truth.cost(p.learning_rate),
    }


def is_confirmed(result: dict[str, float]) -> bool:
    """By the rule of decision."""
    return result["low"] <= result["best"] <= result["high"] and result["cost"] <= result["worst_cost"]


def summary(results: dict[str, dict[str, float]]) -> str:
    """One sentence, for docs/large-run.md."""
    values = results.values()
    costs, worst = (np.array([result[name] for result in values]) for name in ("cost", "worst_cost"))
    off = np.array([math.log2(result["answer"] / result["best"]) for result in values])
    share, rms = f"{sum(map(is_confirmed, values))} of {len(values)}", math.sqrt((off**2).mean())
    median, largest, printed = (percent(float(cost)) for cost in (np.median(costs), costs.max(), np.median(worst)))
    return (
        f"{share} are confirmed: the answer is {rms:.2f} octaves off (rms) and costs {median} in the median, "
        f"{largest} at most; the printed 97.5% cost is {printed} in the median."
    )


def main() -> None:
    command_line.parser("experiments.planted_targets", __doc__).parse_args()
    prepare_cpu()
    results = json.loads(OUT.read_text()) if OUT.exists() else {}
    for number in range(TARGETS):
        if str(number) not in results:
            results[str(number)] = run(number)
            write_atomically(OUT, json.dumps(results, indent=1) + "\n")
            print(number, results[str(number)], flush=True)
    print(summary(results))


if __name__ == "__main__":
    main()

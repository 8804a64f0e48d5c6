"""Is the value that `m.tune(target=)` gives right for the target, and is its cost what was printed?

    python -m experiments.tune            # 20 minutes of two cores a case; goes on where it stopped, writes its rows
    python -m experiments.tune gpt        # this case
    python -m experiments.documents       # the table of docs/large-run.md, from docs/results/tune.json

GPTs on bytes of NumPy's docstrings (language.py), AdamW. The base is 32 wide and 2 deep, with batches of 16 and 100
steps; the budget is 5 minutes. The target has 128 to 256 times the compute, and is trained at five values, octaves
around the answer, with two seeds each.

- "gpt": gpt_linen.py, depth_mup, to 128 x 8 and 400 steps; the other four were written when this one was known.
- "completep": gpt_nnx.py, completep, to the same.
- "width": gpt_linen.py, mup, to 256 x 2 and 400 steps.
- "sp": gpt_linen.py, sp, to 128 x 8 and 400 steps: no rule, the law must find the drift.
- "batch": gpt_linen.py, completep, to 64 x 4, batches of 64 and 400 steps.
- "decay": of "width" the weight decay, at the rates of its law, from .1.

**Predictions**, written before the first training of each case.

- "gpt": the 97.5% cost stays above the tolerance of 1% in 5 minutes.
- "gpt": the target's best rate lies within an octave of the answer.
- "completep", "width", "sp" and "batch": each is confirmed.
- "completep", "width", "sp" and "batch": the 97.5% cost stays above 1% in 5 minutes in each.
- "decay" is confirmed, its 97.5% cost is below 1%, and at the target's best decay rate x decay x steps lies within a
  factor of 4 of .31, which is what Bergsma et al. (arXiv 2505.13738) have at this ratio of tokens to parameters, .13.

**Rule of decision.** The answer is confirmed if the interval that `m.tune` prints overlaps with that of the target's
best value (`fit.optimum`; an unknown end is open), and the answer costs at most the 97.5% cost by the target's smoothed
curve.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas

from depthmup import fit
from depthmup.backend import prepare_cpu
from depthmup.files import write_atomically
from depthmup.fit.curve import checked_curve
from depthmup.names import percent
from depthmup.rules.parameterization import Name
from depthmup.settings import LEARNING_RATE, column
from depthmup.sweep import SweepResult
from depthmup.trials.choices import CHOICES
from depthmup.trials.engine import train
from depthmup.trials.study import Size, Trial
from experiments import command_line, gpt_linen, gpt_nnx, language
from experiments.output import markdown
from experiments.published import RESULTS, ROOT

RUNS, OUT = ROOT / "runs" / "tune", RESULTS / "tune.json"
BATCH, STEPS = 16, 100
DECAY = 0.1  # first guess
BUDGET, OCTAVES, SEEDS = "5min", range(-2, 3), 2
COSTS = (0.05, 0.02, 0.01)  # whose seconds the table has
BEST = "best", "best_low", "best_high"
COLUMNS = (
    "case", "trainings", "answer", "97.5% cost", "best at the target", "cost there", "confirmed", "seconds to 5, 2, 1%"
)  # fmt: skip


class Case(NamedTuple):
    """A model, its rule, and the sizes of the target; those that are left out are the base's."""

    factory: Callable[..., Any]
    parameterization: Name
    target: Mapping[str, int]
    rates: str = ""  # of weight decay: the case that has them


DEEP = {"width": 128, "depth": 8, "steps": 400}
CASES = {
    "completep": Case(gpt_nnx.GPT, "completep", DEEP),
    "batch": Case(gpt_linen.GPT, "completep", {"width": 64, "depth": 4, "batch_size": 64, "steps": 400}),
    "sp": Case(gpt_linen.GPT, "sp", DEEP),
    "width": Case(gpt_linen.GPT, "mup", {"width": 256, "steps": 400}),
    "gpt": Case(gpt_linen.GPT, "depth_mup", DEEP),
    "decay": Case(gpt_linen.GPT, "mup", {"width": 256, "steps": 400}, "width"),
}


def tune(name: str) -> SweepResult:
    """What `m.tune` says of a case."""
    case = CASES[name]
    m = language.setup(case.parameterization, case.factory, fan_in_init=True)
    decay: dict[str, Any] = {"hyperparameter": "weight_decay", "weight_decay": DECAY} if case.rates else {}
    return m.tune(
        language.loss,
        language.batches,
        steps=STEPS,
        target=case.target,
        budget=BUDGET,
        workdir=RUNS / name,
        batch_size=BATCH,
        chance=language.CHANCE,
        learning_rate=tune(case.rates) if case.rates else None,
        **decay,
    )


def run(name: str) -> dict[str, Any]:
    """Tune a case, and train its target."""
    answer = tune(name)
    print(answer)
    p = answer.prediction
    if p is None:
        raise SystemExit("no law: the budget is too small")
    study, key = answer.study, answer.study.searched
    assert study.target
    size, middle = Size(**study.target), round(math.log2(p.learning_rate))
    study = study.at_sizes([size])
    point = study.point_at(size, study.sweep.optimizers[0], study.sweep.parameterizations[0])
    values = [2.0 ** (middle + octave) for octave in OCTAVES]
    if key == LEARNING_RATE:
        chosen = [Trial(point, value, seed) for value in values for seed in range(SEEDS)]
    else:
        rate = answer.hyperparameters["learning_rate"]
        chosen = [Trial(study.with_value(point, key, value), rate, seed) for value in values for seed in range(SEEDS)]
    large = pandas.DataFrame(train(study, RUNS / f"{name}_target", chosen=chosen))
    table = large.pivot_table(index=column(key), columns="seed", values="last_loss", dropna=False)
    rates, losses = table.index.to_numpy(), table.to_numpy(np.float64)
    best, smooth = fit.optimum(rates, losses), checked_curve(rates, losses).smooth()
    cost = math.expm1(float(np.interp(math.log2(p.learning_rate), smooth.fine, smooth.values) - smooth.values.min()))
    return {
        "answer": p.learning_rate,
        "learning_rate": answer.hyperparameters["learning_rate"],
        "low": p.low,
        "high": p.high,
        "cost": p.cost,
        "worst_cost": p.worst_cost,
        "trainings": len(answer.rows),
        "best": best.learning_rate,
        "best_low": best.low,
        "best_high": best.high,
        "measured_cost": cost,
        "losses": dict(zip(map(str, rates.tolist()), losses.tolist(), strict=True)),
        "course": course(RUNS / name, p.worst_cost),
    }


def course(workdir: Path, last: float) -> list[list[float]]:
    """[[seconds spent, the 97.5% cost then], ...] before each choice with an answer, and at the end, where it is
    `last`."""
    choices = [json.loads(line) for line in (workdir / CHOICES).read_text().splitlines()]
    before = [[c["spent"], c["answer"][-1]] for c in choices if c["trials"] and c.get("answer")]
    return [*before, [choices[-1]["spent"], last]]


def confirmed(result: Mapping[str, Any]) -> bool:
    """By the rule of decision."""
    apart = result["low"] > result["best_high"] or result["best_low"] > result["high"]  # of unknown ends neither is
    return not apart and result["measured_cost"] <= result["worst_cost"]


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each case, as Markdown."""
    rows = []
    for name in filter(results.__contains__, CASES):
        r = results[name]
        answer, best = (_interval(*(r[key] for key in keys)) for keys in (("answer", "low", "high"), BEST))
        seconds = [next((f"{at:.0f}" for at, worst in r["course"] if worst <= cost), "-") for cost in COSTS]
        logged = " / ".join(seconds) if r["course"] else "not logged"
        printed, measured = percent(r["worst_cost"]), percent(r["measured_cost"])
        verdict = "yes" if confirmed(r) else "no"
        rows.append((name, str(r["trainings"]), answer, printed, best, measured, verdict, logged))
    return markdown(COLUMNS, rows)


def _interval(*ends: float | None) -> str:
    """Of a value and its ends, with two digits; - for no best value, ? for an end that is not known."""
    value, low, high = ("?" if end is None or math.isnan(end) else f"{end:.2g}" for end in ends)
    return "-" if value == "?" else f"{value} [{low}, {high}]"


def main() -> None:
    cases = command_line.parser("experiments.tune", __doc__, "case", CASES).parse_args().cases
    prepare_cpu()
    for name in cases:
        results = json.loads(OUT.read_text()) | {name: run(name)}
        write_atomically(OUT, json.dumps(results, indent=1) + "\n")
        print(table(results))


if __name__ == "__main__":
    main()

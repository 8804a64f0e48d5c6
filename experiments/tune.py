"""Is the learning rate that `m.tune(target=)` gives right for the target, and is its cost what was printed?

    python -m experiments.tune    # 20 minutes of two cores; goes on where it stopped, writes docs/results/tune.json

The GPT of gpt_linen.py on bytes of NumPy's docstrings (language.py), depth_mup, AdamW. The base is 32 wide and 2 deep,
with batches of 16 and 100 steps; the target 128 wide and 8 deep with 400 steps, 256 times the compute. The budget is 5
minutes. The target is trained at five rates, octaves around the answer, with two seeds each.

**Prediction.** The 97.5% cost stays above the tolerance of 1% in 5 minutes. The target's best rate lies within an
octave of the answer.

**Rule of decision.** The answer is confirmed if the interval that `m.tune` prints overlaps with that of the target's
best rate (`fit.optimum`), and the answer costs at most the 97.5% cost by the target's smoothed curve.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from depthmup import fit
from depthmup.backend import prepare_cpu
from depthmup.files import write_atomically
from depthmup.fit.curve import checked
from experiments import command_line, gpt_linen, language
from experiments.published import RESULTS, ROOT

RUNS, OUT = ROOT / "runs" / "tune", RESULTS / "tune.json"
BATCH, STEPS = 16, 100
TARGET = {"width": 128, "depth": 8, "steps": 400}
BUDGET, OCTAVES, SEEDS = "5min", range(-2, 3), 2


def text(result: Mapping[str, Any]) -> str:
    """What came out, in words."""
    octaves, costs = math.log2(result["best"] / result["answer"]), [result["worst_cost"], result["measured_cost"]]
    answer, best = (
        f"{value:.2g} [{low:.2g}, {high:.2g}]"
        for value, low, high in (
            (result["answer"], result["low"], result["high"]),
            (result["best"], result["best_low"], result["best_high"]),
        )
    )
    printed, measured = (f"{100 * cost:.1f}%" for cost in costs)
    return (
        f"It trained {result['trainings']} times and answered {answer}, which costs at most {printed} (97.5%). The "
        f"target, trained, had its best rate at {best}, {octaves:+.1f} octaves from the answer, which costs {measured} "
        "there."
    )


def main() -> None:
    command_line.parser("experiments.tune", __doc__).parse_args()
    prepare_cpu()
    m = language.setup("depth_mup", gpt_linen.GPT, fan_in_init=True)
    options: dict[str, Any] = {"batch_size": BATCH, "chance": language.CHANCE}
    answer = m.tune(
        language.loss, language.batches, steps=STEPS, target=TARGET, budget=BUDGET, workdir=RUNS / "tune", **options
    )
    print(answer)
    p = answer.prediction
    if p is None:
        raise SystemExit("no law: the budget is too small")
    middle = round(math.log2(p.learning_rate))
    large = m.sweep(
        language.loss,
        language.batches,
        steps=STEPS,
        sizes=[(TARGET["width"], TARGET["depth"], BATCH, TARGET["steps"])],
        widths=(),
        depths=(),
        learning_rates=[2.0 ** (middle + octave) for octave in OCTAVES],
        per_octave=1,
        seeds=SEEDS,
        workdir=RUNS / "target",
        **options,
    ).rows
    table = large[large["width"] == TARGET["width"]].pivot_table(
        index="learning_rate", columns="seed", values="last_loss", dropna=False
    )
    rates, losses = table.index.to_numpy(), table.to_numpy(np.float64)
    best, smooth = fit.optimum(rates, losses), checked(rates, losses).smooth()
    cost = math.expm1(float(np.interp(math.log2(p.learning_rate), smooth.fine, smooth.values) - smooth.values.min()))
    result = {
        "answer": p.learning_rate,
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
    }
    print(json.dumps(result, indent=1))
    write_atomically(OUT, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

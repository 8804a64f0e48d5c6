"""Figures 6a, 6c and 7a: residual networks with dropout, batch norm, both and neither, on 10 classes.

    python -m experiments.paper_b 6 --data=DIR

Claim (D.2): the exponent stays: -1.568 with dropout, -1.869 with batch norm, -1.803 with both; "the depth-learning-rate
rule is robust to these regularizers".

The paper's settings and ours: experiments/paper_b/networks.py, after 100 steps, with the trials of ingredients.py. The
rate of dropout, .1, is ours: the paper does not give it.

Judged by validation accuracy at the depths at which a network learned, for the reasons in
experiments/paper_b/networks.py.

Cost: none besides those of ingredients.py.
Expect: by Sbar at initialization dropout changes nothing; batch norm makes branches independent of the initial variance
c / (K fan_in), so that the exponent moves.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from depthmup.fit import Transfer
from experiments.figures.figure import Experiment, Outcome, Sweeps, combined
from experiments.paper_b import exponents, ingredients
from experiments.paper_b.exponents import against, along_depth, by_both, equal

VARIANTS = ("baseline", "dropout", "batch_norm", "batch_norm_dropout")


def laws(sweeps: Sweeps) -> dict[str, Transfer]:
    return {name: along_depth(sweeps[f"screen_{name}"]) for name in VARIANTS}


def outcome(sweeps: Sweeps) -> Outcome:
    """-3/2 for each, and the same exponent as without them."""
    results = laws(sweeps)
    lines, answers = [], []
    for name, result in results.items():
        difference, same = equal(results["baseline"], result) if name != "baseline" else ("", against(result))
        lines.append(
            "; ".join(filter(None, (f"{name.replace('_', ' ')}, {by_both(sweeps[f'screen_{name}'])}", difference)))
        )
        answers += [against(result), same]
    return Outcome(lines, combined(answers))


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    results = {name.replace("_", " "): result for name, result in laws(sweeps).items()}
    return {"fig6": exponents.pictures(results, "Residual networks, 100 steps, by accuracy")}


EXPERIMENT = Experiment(
    figure="6a, 6c, 7a",
    claim="ResNet: dropout, batch norm and both leave the exponent at about -3/2",
    paper="-1.568 (dropout), -1.869 (batch norm), -1.803 (both)",
    sweeps={f"screen_{name}": ingredients.SCREEN[f"screen_{name}"] for name in VARIANTS},
    outcome=outcome,
    pictures=pictures,
)

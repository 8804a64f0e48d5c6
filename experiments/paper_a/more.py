"""More trainings for single curves that the sweeps left undecided: the seeds and values that their rows asked for.

    python -m experiments.paper_a --data=DIR 4 3 2

Which curves, and how many seeds, was fixed before the first of these trainings. Nothing is stopped by what comes out,
and nothing is trained again. Seeds are a few more than the undecided verdict asked for, with errors corrected for
looking again (`published`). They are at the values that the verdict depends on, and at the tuned size where it does.

curve                                          asked for         here
fig. 4, momentum                               25 seeds          28 at depth 12
fig. 4, weight decay                           a lower decay     two more factors of 4, all depths, 3 seeds
fig. 3, ViT unscaled, without norm             14 seeds          16 at depths 2 and 4
fig. 2, mup, batch norm, beta0 1/16            20 seeds          24 at depths 1, 4 and 8

All are judged as before, by `fit.transfer` on all rows of the curve. They are trained in this order, which is that of
the cost, as far as time allows. The lower decays are expected to leave the row undecided: a single epoch has the lowest
loss without a penalty.

So far: momentum has its 28 seeds at 1 - momentum .25, .125 and .0625, where time ran out before anyone had looked at
the verdict, and not at .031 and .016. It transfers. The other three curves have none of these trainings.

Cost: at most 84 s for a training of momentum at depth 12 (one core, beside other work), about 30 s for a ViT of 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.paper_a import fig2, fig3, fig4


def _only(config: Any, **sweep: Any) -> Any:
    """A config with these settings of its sweep, whose trainings are all trained."""
    config.sweep.update(adaptive=False, until="planned", **sweep)
    return config


def unscaled_vit(depth: int, high: float) -> Any:
    config = fig3.vit()
    config.sweep.log2_learning_rates.adam = (-10.0, high)
    return _only(config, depths=(depth,), parameterizations=("mup",), axes="model.norm = none", seeds=16)


def momentum() -> Any:
    config = fig4.config_of("momentum")
    axes = config.sweep.axes.replace("0, 0.5, 0.75", "0.75")
    return _only(config, depths=(12,), axes=axes, seeds=28)


def weight_decay() -> Any:
    """Three of the values are in the sweep: an axis needs five."""
    values = (6.25e-06, 2.5e-05, 0.0001, 0.00040000000000000013, 0.0016000000000000007)
    axes = f"optimizer.learning_rate = 0.125; optimizer.weight_decay = {', '.join(map(repr, values))}"
    return _only(fig4.config_of("weight_decay"), axes=axes)


def small_branches(depth: int, low: float, high: float) -> Any:
    config = fig2.small_branches()
    config.sweep.log2_learning_rates.sgd = (low, high)
    return _only(config, depths=(depth,), parameterizations=("mup",), seeds=24)


MORE: Mapping[str, Sequence[Callable[[], Any]]] = {
    "momentum": (momentum,),
    "weight_decay": (weight_decay,),
    "vit": (lambda: unscaled_vit(4, -5.0), lambda: unscaled_vit(2, -6.0)),
    "resnet_beta0": (
        lambda: small_branches(8, -2.0, 1.5),
        lambda: small_branches(4, -2.0, 2.0),
        lambda: small_branches(1, -1.5, 2.0),
    ),
}

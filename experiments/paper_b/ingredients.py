"""The residual networks of the dispute: the paper's own, and those that differ from it in one ingredient or two.

What the ingredients do to the exponent of the best learning rate is the question of dispute.py. Head: the paper's
readout has weights of variance 1 / N, a factor 1/sqrt(N); "mean_field_head" has 1/N, by parameterization.gamma0 =
sqrt(N), which at a single width is the same but for a constant factor in all learning rates.
"""

from __future__ import annotations

import math

from depthmup.settings import Settings, from_config
from experiments.paper_b import exponents, fig2a, networks

# {ingredient: what differs from the paper's network}
INGREDIENTS: dict[str, networks.Changes] = {
    "baseline": {},
    "last": {"parameterization.branch_init": "*/last/*"},
    "one_over_depth": {"parameterization.alpha": 1.0},
    "one_layer": {"model.kernels": (3,)},
    "three_layers": {"model.kernels": (3, 3, 3)},
    "batch_norm": {"model.norm": "batch"},
    "dropout": {"model.dropout": 0.1},
    "batch_norm_dropout": {"model.norm": "batch", "model.dropout": 0.1},
    "zero_padding": {"model.padding": "zero"},
    "mean_field_head": {"parameterization.gamma0": math.sqrt(8)},  # of the width
    "mse": {"loss": "mse"},
    "dense": {"model.kernels": (1, 1)},
    "conv_dense": {"model.kernels": (3, 1)},
    "bottleneck": {"model.kernels": (1, 3, 1), "model.bottleneck": 4},
    # Two at a time, where theory says that they interact: what moves the exponent alone with what does not, or with
    # another that does.
    "one_layer_over_depth": {"model.kernels": (3,), "parameterization.alpha": 1.0},
    "one_layer_batch_norm": {"model.kernels": (3,), "model.norm": "batch"},
    "last_over_depth": {"parameterization.branch_init": "*/last/*", "parameterization.alpha": 1.0},
    "last_batch_norm": {"parameterization.branch_init": "*/last/*", "model.norm": "batch"},
}
# Besides the baseline, those that the screens show to move the exponent most.
STRONGEST = ("last", "one_layer")
SCREEN = {
    f"screen_{name}": networks.screen(networks.residual, networks.SCREEN_DEPTHS, changes)
    for name, changes in INGREDIENTS.items()
}
FULL = {
    f"full_{name}": networks.full(networks.residual, networks.FULL_DEPTHS, INGREDIENTS[name])
    for name in ("baseline", *STRONGEST)
}


def name_of(sweep: str) -> str:
    """The ingredient of a sweep."""
    return sweep.removeprefix("screen_").removeprefix("full_")


def label(sweep: str) -> str:
    """The ingredient in words."""
    return name_of(sweep).replace("_", " ")


def settings_of(sweep: str) -> Settings:
    return from_config({**SCREEN, **FULL, **fig2a.SWEEPS}[sweep]())


def by_theory(settings: Settings) -> float:
    """The exponent that Sbar = 1 has at initialization for large depths. Source: docs/theory.md, section 6b.

    It depends on the layers of a branch whose weights carry K^-alpha, without those whose scale a batch norm undoes.
    """
    if settings.model.name != "residual_cnn":
        return exponents.CLAIMED  # section 6a
    last_alone = settings.parameterization.branch_init == "*/last/*" or settings.model.options["norm"] == "batch"
    layers = 1 if last_alone else len(settings.model.options["kernels"])
    alpha = 0.5 if settings.parameterization.alpha is None else settings.parameterization.alpha
    return min(0.0, 2 * alpha * (layers - 1) - 1)

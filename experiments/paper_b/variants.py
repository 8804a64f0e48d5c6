"""Figures 3, 4, 6a, 6c, 7a and appendices C.1, E, F: the exponent in networks that differ from those of figure 2.

    python -m experiments.paper_b 3 4 6 branches E losses --data=DIR

Claims: plain networks with GELU and He's variance times sqrt(2), which is meant to keep the variance over depth, have
the slope -1.38 (figure 3, D.1), and GELU's exponent is a little more negative than ReLU's, -1.40 against -1.35 (E).
Circular and zero padding follow the same law; they differ by a factor (4, D.1). The exponent of residual networks stays
with regularizers: -1.568 with dropout, -1.869 with batch norm, -1.803 with both (6a, 6c, 7a, D.2); and with branches of
m layers, m = o(L), dense or convolutional (C.1.1, C.1.2). Cross-entropy, which the experiments have, and the squared
error, which the proofs have, lead to the same exponent and shifted fits (F).

Settings, the paper's beside those used here, and how it is judged: experiments/paper_b/networks.py. Plain networks have
an epoch, residual ones 100 steps with the trials of ingredients.py. GELU has the paper's variance, 2 sqrt(2) / fan_in,
under which the variance grows (docs/theory.md, section 6a), and beside it 2.352 / fan_in ("stationary"). The rate of
dropout is .1; the paper does not give it. Branches: 3x3, 3x3, 3x3; 1x3x1 with a bottleneck of 4; two dense layers; 3x3
and dense, where a dense layer acts on the channels of each position. Out of reach: dense layers over all positions,
groups and dilation, which `ResidualCNN` does not have.

Cost: besides figure 2a's and the ingredients 4 sweeps of about 150 trainings of 351 steps, 52 minutes on one core.
Expect: with the paper's variance of GELU a steeper exponent, since features and gradients grow with depth. On 8x8
pixels zero padding loses a part of the variance that grows with depth, and with it a part of the slope. Dropout changes
nothing; batch norm makes branches independent of the initial variance c / (K fan_in), so that the exponent moves. A
branch of m >= 2 layers that all carry 1/sqrt(K) has the exponent 0; Sbar of finite networks has small positive ones.
Equal exponents for both losses, as at initialization (docs/theory.md, section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.figures.figure import Experiment
from experiments.paper_b import fig2a, ingredients, networks
from experiments.paper_b.exponents import Law, experiment, steeper

GELU = {
    f"gelu_{variance}": networks.full(
        networks.plain, networks.SHORT, {"model.activation": "gelu", "model.gelu_variance": variance}
    )
    for variance in ("paper", "stationary")
}
PLAIN = Law("plain", networks.SHORT)


def screened(names: Sequence[str], **more: Any) -> Experiment:
    """A figure that claims -3/2 of these ingredients after 100 steps."""
    laws = {ingredients.label(name): Law(f"screen_{name}") for name in names}
    sweeps = {law.sweep: ingredients.SCREEN[law.sweep] for law in laws.values()}
    return experiment(
        sweeps=sweeps, laws=laws, claimed=list(laws), title="Residual networks, 100 steps, by accuracy", **more
    )


FIGURE_3 = experiment(
    figure="3",
    claim="plain CNNs with GELU: exponent -1.38",
    sweeps=GELU,
    laws={f"{name.removeprefix('gelu_')} variance": Law(name) for name in GELU},
    claimed=["paper variance"],  # the other one stands beside it
    picture="fig3",
    title="Plain networks with GELU, by accuracy",
)
STEEPER = experiment(
    figure="Appendix E",
    claim="GELU's exponent (-1.40) is a little more negative than ReLU's (-1.35)",
    sweeps={**GELU, **fig2a.SWEEPS},
    laws={"ReLU": PLAIN, "GELU, paper variance": Law("gelu_paper")},
    compared={"GELU, paper variance": "ReLU"},
    compare=steeper,
)
FIGURE_4 = experiment(
    figure="4",
    claim="plain CNNs: zero and circular padding have essentially one power law",
    sweeps={"zero_padding": networks.full(networks.plain, networks.SHORT, {"model.padding": "zero"}), **fig2a.SWEEPS},
    laws={"circular padding": PLAIN, "zero padding": Law("zero_padding")},
    compared={"zero padding": "circular padding"},
    picture="fig4",
    title="Plain networks, by accuracy",
)
FIGURE_6 = screened(
    ("baseline", "dropout", "batch_norm", "batch_norm_dropout"),
    figure="6a, 6c, 7a",
    claim="ResNets with dropout, batch norm, both: exponents -1.568, -1.869, -1.803",
    compared=dict.fromkeys(("dropout", "batch norm", "batch norm dropout"), "baseline"),
    picture="fig6",
)
BRANCHES = screened(
    ("three_layers", "bottleneck", "dense", "conv_dense"),
    figure="Appendix C.1",
    claim="ResNets with deeper, bottleneck, dense, mixed branches: exponent -3/2",
    picture="branches",
)
LOSSES = experiment(
    figure="Appendix F",
    claim="cross-entropy and squared error have nearly parallel laws",
    sweeps={
        "plain_mse": networks.full(networks.plain, networks.SHORT, {"loss": "mse"}),
        **fig2a.SWEEPS,
        **{name: ingredients.SCREEN[name] for name in ("screen_baseline", "screen_mse")},
    },
    laws={
        "plain, cross-entropy": PLAIN,
        "plain, squared error": Law("plain_mse"),
        "residual, cross-entropy": Law("screen_baseline"),
        "residual, squared error": Law("screen_mse"),
    },
    compared={f"{kind}, squared error": f"{kind}, cross-entropy" for kind in ("plain", "residual")},
    picture="losses",
    title="By accuracy",
)

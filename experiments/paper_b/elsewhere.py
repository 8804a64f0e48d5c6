"""The rows of paper B in docs/results.md that no module of this package has: other experiments show them."""

from __future__ import annotations

AGREES, DISAGREES = "**agrees**", "**disagrees**"
CHECKS = "`python -m experiments.theory_checks"
# (figure, claim, paper, ours, verdict, command)
ELSEWHERE: tuple[tuple[str, str, str, str, str, str], ...] = (
    (
        "1",
        "depth counts residual blocks, whatever is in them",
        "a convention",
        "`model.depth` of `residual_cnn` counts so",
        "-",
        "`main.py explain --config=configs/cifar10_residual_cnn.py`",
    ),
    (
        "Theorem 1, at initialization",
        "Sbar = 1 gives depth^-3/2 in plain networks",
        "proved",
        "at infinite width the local slopes tend to -3/2 (-1.503 at depth 512); CNNs in one dimension -1.49 "
        "[-1.63, -1.34] ([theory.md](theory.md), section 6a)",
        AGREES,
        f"{CHECKS} mean_change_of_cnns`",
    ),
    (
        "Theorem 1, width, at initialization",
        "Sbar = 1 gives a learning rate that does not depend on the width",
        "proved, with as many outputs as units",
        "plain networks: width^-.02 [-.09, .04] with the 1/N readout, width^-.45 [-.54, -.37] with the standard one "
        "and ten outputs, as in the paper's experiments",
        "1/N: **agrees**; standard: **disagrees**",
        f"{CHECKS} mean_change_over_width`",
    ),
    (
        "Theorem 2, boundary, at initialization",
        "zero padding's correction is of order kernel / side and does not grow with depth",
        "proved",
        "it grows with depth: after L layers a part of order sqrt(L) kernel / side of the variance is lost, beyond L = "
        "side^2 all of it",
        DISAGREES,
        "`python experiments/signal_propagation.py`",
    ),
    (
        "Theorem 3, at initialization",
        "Sbar = 1 gives depth^-3/2 in residual networks of variance c/(K fan_in)",
        "proved",
        "depth^-1 for branches of one layer, depth^0 where two layers both carry 1/K, depth^-1 where the last one does "
        "([theory.md](theory.md), section 6b)",
        DISAGREES,
        f"{CHECKS} mean_change_over_depth`",
    ),
    (
        "Appendix A, identities",
        "sums over blocks survive splits and merges of layers",
        "argued",
        "`MaximalUpdate.split` and `.merged` undo each other",
        AGREES,
        "`pytest tests/test_maximal_update.py`",
    ),
    (
        "Appendix E, initial variance",
        "He's variance times sqrt(2) keeps pre-activations before a GELU at variance 1",
        "stated",
        "it grows to 16 in ten layers; 2.352 / fan_in has the fixed point 1, a repelling one",
        DISAGREES,
        "`python experiments/signal_propagation.py`",
    ),
    (
        "Appendix E, gradients",
        "GELU's factor of a gradient's mean square in each layer is .912, below ReLU's 1",
        "stated",
        ".912 with He's gain; with the paper's own 1.29, and 1.45 in the tenth layer",
        DISAGREES,
        "`python experiments/signal_propagation.py`",
    ),
    (
        "Appendix F, at initialization",
        "Sbar = 1 gives one exponent for cross-entropy and squared error",
        "argued",
        "one exponent in every network of the table ([theory.md](theory.md), section 6)",
        AGREES,
        f"{CHECKS} mean_change_over_depth`",
    ),
)

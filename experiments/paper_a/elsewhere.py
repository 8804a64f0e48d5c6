"""The rows of docs/results.md that no module of this package has: shown by other experiments, or by nothing yet.

Costs are operations by the arithmetic of `main.py sweep --dry_run`, at 1e11 a second, unless they say otherwise.
"""

AGREES, NOT_RUN = "**agrees**", "not run"
# (figure, claim, paper, ours, verdict, command)
ELSEWHERE: tuple[tuple[str, str, str, str, str, str], ...] = (
    (
        "Table 1, eq. 1-3",
        "the scalings of SP, muP and muP with 1/sqrt(depth)",
        "a table",
        "every factor by an independent re-derivation and against four packages ([rules.md](rules.md))",
        AGREES,
        "`make test`",
    ),
    (
        "3e-f",
        "ViT without layer norm on ImageNet transfers",
        "transfers",
        "-; out of reach of a CPU: 23 years",
        NOT_RUN,
        "`main.py sweep --config=configs/imagenet_vit.py`",
    ),
    (
        "5, B.7",
        "networks approach the limit as 1/width and 1/depth",
        "so it is",
        "mean network against DMFT: N^-1.00 [-1.07, -.93] (ReLU); in depth 1/L, exactly for linear networks "
        "([limit.md](limit.md))",
        AGREES,
        "`python -m experiments.convergence`",
    ),
    (
        "6",
        "the NTK of finite depth approaches that of infinite depth",
        "squared error as 1/depth^2",
        "slope -.9993 of the error, ReLU; in width N^-1.03 [-1.08, -.97] of the squared error",
        AGREES,
        "`python -m experiments.ntk_depth`",
    ),
    (
        "7",
        "kernels after one step of linear networks",
        "theory = networks",
        "networks within .9 standard errors of the recursion in every layer",
        AGREES,
        "`python -m experiments.one_step_kernels`",
    ),
    (
        "B.6",
        "ResNets on ImageNet transfer",
        "transfers",
        "-; out of reach of a CPU: 56 years",
        NOT_RUN,
        "`main.py sweep --config=configs/imagenet_resnet.py`",
    ),
    (
        "C, J",
        "NTP is lazy, muP is not; over width muP's optimum stays and NTP's drifts",
        "so it is",
        "kernel movement N^-.96 [-.98, -.93] (NTP) and N^.05 [.03, .07] (muP); muP's optimum moves .00 [-.02, .02] "
        "octaves a doubling, NTP's -.03 [-.06, .00]: it is lazy at the smallest width. Between widths that learn "
        "features and widths that do not it moves by .12 [.04, .20] ([limit.md](limit.md))",
        "lazy, and muP's optimum: **agrees**; NTP's drift: not seen",
        "`python -m experiments.ntp_against_mup`",
    ),
    (
        "D-G",
        "the DMFT of finite and infinite depth",
        "derived",
        "against independent solvers and networks ([limit.md](limit.md), [theory.md](theory.md))",
        AGREES,
        "`python -m experiments.theory_checks`",
    ),
    (
        "F",
        "limits of width and depth commute",
        "they do",
        "differences within their errors (.87 and .56 chance); a term L/N is 0 within -.0028 +- .0053, in one problem "
        "at widths up to 256",
        "**undecided at this scale**",
        "`python -m experiments.limits_commute`",
    ),
    (
        "H",
        "fluctuations reach a limit in depth; plain networks' grow as depth / width",
        "so it is, to leading order",
        "after three steps at gamma0 1 they still grow as L^.09 to L^.14 up to depth 32; plain ones at initialization "
        "are exactly (1 + 5/N)^(L-1) (1 + 2/N) - 1, which is 5L/N to leading order and exponential beyond L of about "
        "N/5 (L^1.3 at N = 256 up to depth 32)",
        "**undecided**; plain: **agrees** at order 5L/N",
        "`python -m experiments.fluctuations`",
    ),
    (
        "I",
        "the terms of the finite-size error",
        "v/N, 1/N^2, 1/L^2, a mixed term",
        "all found, the mixed term too",
        AGREES,
        "`python -m experiments.convergence`",
    ),
    (
        "K.1",
        "convolutions have the same limit",
        "derived; at initialization",
        "N^-1.02 [-1.17, -.86] of H's squared error; not tried in training",
        "**agrees** at initialization",
        "`python -m experiments.convolutional_kernels`",
    ),
    (
        "K.2",
        "branches of two weights: the inner weights act as if static",
        "derived",
        "the inner pre-activations do freeze, they move by L^-1/2 ([theory.md](theory.md), section 4.5); "
        "but their steps add up over the branches, and one step of the inner weights moves the stream as much as one "
        "of the outer (ratio 1.006 at depth 128)",
        "inner pre-activations: **agrees**; the stream: **disagrees**",
        "`python -m experiments.two_weight_blocks`",
    ),
    (
        "K.3-K.5",
        "read-in weights, discrete time, momentum",
        "derived",
        "against networks ([theory.md](theory.md))",
        AGREES,
        "`python -m experiments.theory_checks`",
    ),
    (
        "L",
        "weight decay has the same limit",
        "derived",
        "`linear_dmft` and `dmft` have it, against networks ([theory.md](theory.md))",
        AGREES,
        "`python -m experiments.theory_checks`",
    ),
)

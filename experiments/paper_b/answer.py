"""The answer to the dispute as tables: the exponents of every network, and which theory predicts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.figures.figure import Sweeps, markdown
from experiments.paper_b import at_start, exponents
from experiments.paper_b.exponents import (
    BOTH,
    MEASURES,
    Exponent,
    along_depth,
    apart,
    equal,
    of_edges,
    of_optima,
)
from experiments.paper_b.ingredients import by_theory, name_of, settings_of


def table(sweeps: Sweeps) -> str:
    """The answer: the exponents of every ingredient, and what is known of it before any training."""
    predictors = ["edge", "minus baseline", "Sbar", "2 / sharpness", "PathSum", "theory"]
    columns = ["", *MEASURES.values(), *predictors]
    baseline = next((along_depth(sweeps[name]) for name in sweeps if name_of(name) == "baseline"), None)
    rows = []
    for sweep in sweeps:
        name, judged = name_of(sweep), {measure: along_depth(sweeps[sweep], measure) for measure in MEASURES}
        cells = [_cell(result, of_optima(result)) for result in judged.values()]
        depths = judged["loss"].values
        start = at_start.read(name)
        moved = "" if baseline is None or name == "baseline" else equal(baseline, judged["validation_accuracy"])[0]
        rows.append(
            [
                name.replace("_", " "),
                *cells,
                _said(of_edges(judged["validation_accuracy"])),
                moved.removeprefix("difference of exponents "),
                _said(at_start.of_update(start, depths)),
                _said(at_start.of_sharpness(start, depths)),
                f"{exponents.by_path_sum(settings_of(sweep), depths):+.2f}",
                f"{by_theory(settings_of(sweep)):+.1f}",
            ]
        )
    return markdown(columns, rows) + "\n" + NOTE + predictions(sweeps)


def predictions(sweeps: Sweeps) -> str:
    """How well PREDICTIONS give the exponents of the trained optima.

    A table over the networks for which both are known; "" for fewer than FEWEST networks.
    """
    rows = []
    for name, predicted in PREDICTIONS.items():
        for measure in BOTH:
            known = []  # (prediction, exponent of the optima, difference, half its interval, exponent by theory)
            for sweep, trials in sweeps.items():
                exponent, theory = of_optima(along_depth(trials, measure)), by_theory(settings_of(sweep))
                gap = apart(predicted(sweep, exponent.used), exponent) if exponent else None
                if exponent and gap:
                    known.append((exponent.value - gap[0], exponent.value, *gap, theory))
            if len(known) < exponents.FEWEST:
                continue
            guesses, values, off, half, theories = np.array(known).T
            rows.append(
                [
                    name,
                    MEASURES[measure],
                    f"{np.sum(np.abs(off) > half)} of {len(known)}",
                    f"{np.sqrt(np.mean(off**2)):.2f}",
                    _correlation(guesses, values),
                    _correlation(guesses[theories == 0], values[theories == 0]),
                ]
            )
    columns = ["prediction", "by", "excluded in", "root mean square difference", "correlation", "where theory has 0"]
    return "\n" + markdown(columns, rows) + "\n" + PREDICTED if rows else ""


# {name: the exponent that is predicted for a sweep over these depths}
PREDICTIONS: dict[str, Callable[[str, Sequence[float]], Exponent | float | None]] = {
    "-3/2 (theorem 3)": lambda sweep, depths: exponents.CLAIMED,
    "theory": lambda sweep, depths: by_theory(settings_of(sweep)),
    "Sbar": lambda sweep, depths: at_start.of_update(at_start.read(name_of(sweep)), depths),
    "2 / sharpness": lambda sweep, depths: at_start.of_sharpness(at_start.read(name_of(sweep)), depths),
}
PREDICTED = """
The predictions against the exponents of the trained optima, over the networks of the table. *excluded in*: in so many
networks the 95% interval of the difference does not hold 0; of right predictions that happens to one in twenty. The
correlation over the networks, and over those alone for which *theory* is 0.
"""


def _correlation(first: np.ndarray, second: np.ndarray) -> str:
    if len(first) < exponents.FEWEST or not (np.ptp(first) and np.ptp(second)):
        return "-"
    return f"{np.corrcoef(first, second)[0, 1]:.2f}"


NOTE = """
The networks differ from *baseline*, the paper's own, in what their names say. *last*: the last layer of a branch alone
carries the 1/K; *over depth*: weights with 1/K instead of 1/sqrt(K); *one layer, three layers*: in a branch; *mean
field head*: a readout with 1/N; *mse*: the squared error; *dense, conv dense*: one or both of the layers act on each
pixel alone; *bottleneck*: 1x1, 3x3 and 1x1 with a quarter of the channels.

Exponents of the best learning rate over depth with their 95% intervals; depths at which no network learned do not
count; (n of m at the edge): so many of m optima are within a grid step of the learning rate above which training is not
possible. *edge*: the exponent of that one; "-" where fewer than five depths have it among the learning rates trained.
*minus baseline*: the exponent by accuracy minus the baseline's. Sbar, 2 / sharpness: of the learning rates that AM-
muP's criterion and the Hessian's largest eigenvalue allow at initialization (`python -m experiments.paper_b.initial`).
PathSum: of the law 1 / sqrt(PathSum), which is no power of the depth, since the paths double with every block; the line
through these depths. *theory*: for large depths ([theory.md](theory.md), section 6).
"""


def _said(exponent: Exponent | None) -> str:
    return "-" if exponent is None else str(exponent)


def _cell(result: Any, exponent: Exponent | None) -> str:
    if exponent is None:
        return exponents.counted(result)
    at_edge = f" ({len(exponent.at_edge)} of {len(exponent.used)} at the edge)" if exponent.at_edge else ""
    return f"{exponent}{at_edge}"

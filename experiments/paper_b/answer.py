"""The answer to the dispute as tables: the exponents of every network, and which theory predicts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from depthmup.fit import Transfer
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
    words,
)
from experiments.paper_b.ingredients import by_theory, name_of, settings_of


def table(sweeps: Sweeps, columns: Sequence[str] = (), cell: Callable[[Transfer], str] = words) -> str:
    """The exponents of every network, and what is known of it before any training.

    columns: of MEASURES and COLUMNS; none: all. cell: what stands in those of MEASURES.
    """
    trained = {words: measure for measure, words in MEASURES.items()}
    columns = columns or (*trained, *COLUMNS)
    rows = [
        [name_of(name).replace("_", " ")]
        + [cell(along_depth(sweeps[name], trained[c])) if c in trained else COLUMNS[c](sweeps, name) for c in columns]
        for name in sweeps
    ]
    return markdown(("network", *columns), rows)


def _minus_baseline(sweeps: Sweeps, name: str) -> str:
    """Of the exponent by accuracy."""
    baseline = next((along_depth(sweeps[other]) for other in sweeps if name_of(other) == "baseline"), None)
    return equal(baseline, along_depth(sweeps[name]))[0] if baseline and name_of(name) != "baseline" else ""


def _depths(sweeps: Sweeps, name: str) -> Sequence[float]:
    return along_depth(sweeps[name]).values


# {prediction: the exponent of a sweep over these depths}
PREDICTIONS: dict[str, Callable[[str, Sequence[float]], Exponent | float | None]] = {
    "-3/2 (theorem 3)": lambda sweep, depths: exponents.CLAIMED,
    "theory": lambda sweep, depths: by_theory(settings_of(sweep)),
    "Sbar": lambda sweep, depths: at_start.of_update(at_start.read(name_of(sweep)), depths),
    "2 / sharpness": lambda sweep, depths: at_start.of_sharpness(at_start.read(name_of(sweep)), depths),
}
# {column: its cell for a sweep}
COLUMNS: dict[str, Callable[[Sweeps, str], str]] = {
    "edge": lambda sweeps, name: str(of_edges(along_depth(sweeps[name])) or "-"),
    "minus baseline": _minus_baseline,
    "Sbar": lambda sweeps, name: str(PREDICTIONS["Sbar"](name, _depths(sweeps, name)) or "-"),
    "2 / sharpness": lambda sweeps, name: str(PREDICTIONS["2 / sharpness"](name, _depths(sweeps, name)) or "-"),
    "PathSum": lambda sweeps, name: f"{exponents.by_path_sum(settings_of(name), _depths(sweeps, name)):+.2f}",
    "theory": lambda sweeps, name: f"{by_theory(settings_of(name)):+.1f}",
}


class Match(NamedTuple):
    """How well a prediction gives the exponents of trained optima: in how many of so many networks the 95% interval of
    the difference excludes 0, and the root mean square difference."""

    excluded: int
    networks: int
    off: float


def match(sweeps: Sweeps, prediction: str, measure: str) -> Match | None:
    """Over the networks for which both are known; None for fewer than FEWEST."""
    gaps = []
    for sweep, trials in sweeps.items():
        exponent = of_optima(along_depth(trials, measure))
        gap = apart(PREDICTIONS[prediction](sweep, exponent.used), exponent) if exponent else None
        gaps += [gap] if gap else []
    if len(gaps) < exponents.FEWEST:
        return None
    off, half = np.array(gaps).T
    return Match(int(np.sum(np.abs(off) > half)), len(gaps), float(np.sqrt(np.mean(off**2))))


def predictions(sweeps: Sweeps) -> str:
    """The matches of all predictions as a table; "" where there are too few networks."""
    rows = []
    for name in PREDICTIONS:
        matches = {measure: match(sweeps, name, measure) for measure in BOTH}
        cells = [f"{m.excluded} of {m.networks}, {m.off:.2f}" if m else "-" for m in matches.values()]
        rows += [[name, *cells]] if any(matches.values()) else []
    columns = ("prediction: excluded in, root mean square difference", *(f"by {MEASURES[measure]}" for measure in BOTH))
    return markdown(columns, rows) if rows else ""

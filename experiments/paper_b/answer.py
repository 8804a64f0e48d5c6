"""The answer to the dispute as tables: the exponents of every network, and which theory predicts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from depthmup.fit import PowerLaw, Transfer
from experiments.figures.figure import Sweeps, markdown
from experiments.paper_b import at_start, exponents
from experiments.paper_b.exponents import BOTH, MEASURES, along_depth, apart, equal, of_edges, of_optima, text, words
from experiments.paper_b.ingredients import by_theory, label, name_of, settings_of


def table(sweeps: Sweeps, columns: Sequence[str] = (), cell: Callable[[Transfer], str] = words) -> str:
    """The exponents of every network, and what is known of it before any training.

    columns: of MEASURES and COLUMNS; none: all. cell: what stands in those of MEASURES.
    """
    trained = {words: measure for measure, words in MEASURES.items()}
    columns = columns or (*trained, *COLUMNS)
    rows = [
        [label(name)]
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


def _sbar(sweep: str, depths: Sequence[float]) -> PowerLaw | None:
    return at_start.of_update(at_start.read(name_of(sweep)), depths)


def _of_sharpness(sweep: str, depths: Sequence[float]) -> PowerLaw | None:
    return at_start.of_sharpness(at_start.read(name_of(sweep)), depths)


# {prediction: the law of a sweep over these depths, or its exponent}
PREDICTIONS: dict[str, Callable[[str, Sequence[float]], PowerLaw | float | None]] = {
    "-3/2 (theorem 3)": lambda sweep, depths: exponents.CLAIMED,
    "theory": lambda sweep, depths: by_theory(settings_of(sweep)),
    "Sbar": _sbar,
    "2 / sharpness": _of_sharpness,
}
# {column: its cell for a sweep}
COLUMNS: dict[str, Callable[[Sweeps, str], str]] = {
    "edge": lambda sweeps, name: text(of_edges(along_depth(sweeps[name]))),
    "minus baseline": _minus_baseline,
    "Sbar": lambda sweeps, name: text(_sbar(name, _depths(sweeps, name))),
    "2 / sharpness": lambda sweeps, name: text(_of_sharpness(name, _depths(sweeps, name))),
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
    laws = {sweep: of_optima(along_depth(trials, measure)) for sweep, trials in sweeps.items()}
    apart_from = (apart(PREDICTIONS[prediction](sweep, law.depths.tolist()), law) for sweep, law in laws.items() if law)
    gaps = [gap for gap in apart_from if gap]
    if len(gaps) < exponents.FEWEST:
        return None
    excluded = sum(not gap.low <= 0 <= gap.high for gap in gaps)
    return Match(excluded, len(gaps), float(np.sqrt(np.mean([gap.value**2 for gap in gaps]))))


def predictions(sweeps: Sweeps) -> str:
    """The matches of all predictions as a table; "" where there are too few networks."""
    rows = []
    for name in PREDICTIONS:
        matches = {measure: match(sweeps, name, measure) for measure in BOTH}
        cells = [f"{m.excluded} of {m.networks}, {m.off:.2f}" if m else "-" for m in matches.values()]
        rows += [[name, *cells]] if any(matches.values()) else []
    columns = ("prediction: excluded in, root mean square difference", *(f"by {MEASURES[measure]}" for measure in BOTH))
    return markdown(columns, rows) if rows else ""

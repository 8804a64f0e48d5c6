"""The answer to the dispute as tables: the exponents of every network, and which theory predicts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from depthmup.fit import PowerLaw, Transfer
from experiments.figures.figure import Sweeps
from experiments.output import markdown
from experiments.paper_b import at_start, exponents
from experiments.paper_b.exponents import BOTH, MEASURES, along_depth, apart, equal, of_edges, of_optima, text, words
from experiments.paper_b.ingredients import by_theory, label, name_of, settings_of

# {prediction: the law of a sweep over these depths, or its exponent}
PREDICTIONS: dict[str, Callable[[str, Sequence[float]], PowerLaw | float | None]] = {
    "-3/2 (theorem 3)": lambda sweep, depths: exponents.CLAIMED,
    "theory": lambda sweep, depths: by_theory(settings_of(sweep)),
    "Sbar": lambda sweep, depths: at_start.of_update(at_start.read(name_of(sweep)), depths),
    "2 / sharpness": lambda sweep, depths: at_start.of_sharpness(at_start.read(name_of(sweep)), depths),
}
COLUMNS = ("edge", "minus baseline", "Sbar", "2 / sharpness", "PathSum", "theory")


def table(sweeps: Sweeps, columns: Sequence[str] = (), cell: Callable[[Transfer], str] = words) -> str:
    """The exponents of every network, and what is known of it before any training.

    columns: of MEASURES and COLUMNS; none: all. cell: what stands in those of MEASURES.
    """
    baseline = next((along_depth(sweep) for name, sweep in sweeps.items() if name_of(name) == "baseline"), None)
    columns, rows = columns or (*MEASURES.values(), *COLUMNS), []
    for name, sweep in sweeps.items():
        result = along_depth(sweep)
        known = {measure: cell(along_depth(sweep, key)) for key, measure in MEASURES.items() if measure in columns}
        known["edge"] = text(of_edges(result))
        known["minus baseline"] = equal(baseline, result)[0] if baseline and name_of(name) != "baseline" else ""
        for column in ("Sbar", "2 / sharpness", "theory"):
            law = PREDICTIONS[column](name, result.values)
            known[column] = f"{law:+.1f}" if isinstance(law, float) else text(law)
        known["PathSum"] = f"{exponents.by_path_sum(settings_of(name), result.values):+.2f}"
        rows.append([label(name), *(known[column] for column in columns)])
    return markdown(("exponent by", *columns), rows)


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

"""Figure 2b and theorem 3: how the best learning rate of residual networks falls with depth, and what decides it.

    python -m experiments.paper_b ingredients --data=DIR        first: every ingredient, 100 steps
    python -m experiments.paper_b.initial --data=DIR            then: Sbar and sharpness at initialization
    python -m experiments.paper_b 2b --data=DIR                 last: an epoch, the baseline and the STRONGEST

Claim (4.3, theorem 3): with branches whose weights all start with variance c / (K fan_in), the best learning rate falls
as depth^-3/2 (-1.435 in figure 2b), whatever the branch is made of, and PathSum's law does not hold. Against it
(docs/theory.md, section 6b): Sbar = 1 at initialization gives -1 where a branch has one layer, 0 where it has two that
both carry 1/K, -1 where the last one alone does, and -3/2 without skips.

Settings, the paper's beside those used here, and how it is judged: experiments/paper_b/networks.py.
Each ingredient (ingredients.py) is changed alone, against the paper's own network ("baseline"). The full sweeps are
judged after the first 100 steps, too.

Cost: ingredients, 18 sweeps of about 100 trainings of 100 steps, 10 h on one core; initial, an hour; full sweeps, about
640 trainings of 351 steps, 7 h.
Expect: by theory -1 for "last", "one_layer" and all with batch norm, 0 for the others; by the paper about -3/2 for all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from depthmup.fit import PowerLaw, Transfer
from experiments.figures.figure import Experiment, Outcome, Sweeps
from experiments.output import AGREES, DISAGREES, combined, markdown
from experiments.paper_b import at_start, exponents, fig2a
from experiments.paper_b.exponents import BOTH, MEASURES, against, along_depth, bare, equal, of_optima, text, words
from experiments.paper_b.ingredients import FULL, INGREDIENTS, SCREEN, by_theory, label, name_of, settings_of

# {prediction: the law of a sweep over these depths, or its exponent}
PREDICTIONS: dict[str, Callable[[str, Sequence[float]], PowerLaw | float | None]] = {
    "-3/2 (theorem 3)": lambda sweep, depths: exponents.CLAIMED,
    "theory": lambda sweep, depths: by_theory(settings_of(sweep)),
    "Sbar": lambda sweep, depths: at_start.of_update(at_start.read(name_of(sweep)), depths),
    "2 / sharpness": lambda sweep, depths: at_start.of_sharpness(at_start.read(name_of(sweep)), depths),
}
COLUMNS = ("edge", "minus baseline", "Sbar", "2 / sharpness", "PathSum", "theory")


def exponent_table(sweeps: Sweeps, columns: Sequence[str] = (), cell: Callable[[Transfer], str] = words) -> str:
    """The exponents of every network, and what is known of it before any training.

    columns: of MEASURES and COLUMNS; none: all. cell: what stands in those of MEASURES.
    """
    baseline = next((along_depth(sweep) for name, sweep in sweeps.items() if name_of(name) == "baseline"), None)
    columns, rows = columns or (*MEASURES.values(), *COLUMNS), []
    for name, sweep in sweeps.items():
        result = along_depth(sweep)
        known = {measure: cell(along_depth(sweep, key)) for key, measure in MEASURES.items() if measure in columns}
        known["edge"] = text(exponents.of_edges(result))
        known["minus baseline"] = equal(baseline, result)[0] if baseline and name_of(name) != "baseline" else ""
        for column in ("Sbar", "2 / sharpness", "theory"):
            law = PREDICTIONS[column](name, result.values)
            known[column] = f"{law:+.1f}" if isinstance(law, float) else text(law)
        known["PathSum"] = f"{exponents.by_path_sum(settings_of(name), result.values):+.2f}"
        rows.append([label(name), *(known[column] for column in columns)])
    return markdown(("exponent by", *columns), rows)


def match(sweeps: Sweeps, prediction: str, measure: str) -> str:
    """How well a prediction gives the exponents of trained optima: in how many of the networks for which both are known
    the 95% interval of the difference excludes 0, and the root mean square difference; "-" for fewer than FEWEST."""
    laws = {sweep: of_optima(along_depth(trials, measure)) for sweep, trials in sweeps.items()}
    known = {sweep: law for sweep, law in laws.items() if law}
    predict = PREDICTIONS[prediction]
    apart_from = (exponents.apart(predict(sweep, law.depths.tolist()), law) for sweep, law in known.items())
    gaps = [gap for gap in apart_from if gap]
    if len(gaps) < exponents.FEWEST:
        return "-"
    excluded = sum(not gap.low <= 0 <= gap.high for gap in gaps)
    return f"{excluded} of {len(gaps)}, {np.sqrt(np.mean([gap.value**2 for gap in gaps])):.2f}"


def predictions(sweeps: Sweeps) -> str:
    """The matches of all predictions as a table; "" where there are too few networks."""
    rows = [[name, *(match(sweeps, name, measure) for measure in BOTH)] for name in PREDICTIONS]
    columns = ("prediction: excluded in, root mean square difference", *(f"by {MEASURES[measure]}" for measure in BOTH))
    known = [row for row in rows if set(row[1:]) != {"-"}]
    return markdown(columns, known) if known else ""


def ingredients(sweeps: Sweeps) -> Outcome:
    """Theorem 3: no ingredient inside its assumptions moves the exponent from -3/2; one that does refutes it."""
    results = {name: along_depth(sweep) for name, sweep in sweeps.items()}
    lines = []
    for place, power in itertools.product((True, False), (-1, 0)):
        kept = {name: result for name, result in results.items()
                if (assumed(name), by_theory(settings_of(name))) == (place, power)}  # fmt: skip
        shown = (f"{label(name)} {bare(result)}" for name, result in kept.items() if of_optima(result))
        lines.append(f"{'Inside' if place else 'Outside'} it, theory says {power}: {'; '.join(shown)}.")
    rest = (label(name) for name, result in results.items() if not of_optima(result))
    lines.append(f"Without an exponent: {', '.join(rest)}.")
    inside = [name for name in sweeps if assumed(name)]
    section = "\n\n".join(["\n".join([_assumptions(sweeps, inside), *lines]), predictions(sweeps)])
    counts = _count(sweeps, inside), _count(sweeps, sweeps.keys() - inside)
    number = f"inside its assumptions {counts[0]}; outside {counts[1]}; {TRAINED}"
    return Outcome(combined([against(results[name]) for name in inside]), number, section)


# Of theorem 3.
ASSUMED = "all layers of a branch carry the 1/K, and there is neither norm nor dropout"
EXCLUDED = {"parameterization.branch_init", "parameterization.alpha", "model.norm", "model.dropout"}
TRAINED = "8 channels, 100 steps"
PAPER = f"Here: {TRAINED}; the paper: 64 to 512 channels, an epoch."


def assumed(sweep: str) -> bool:
    """Whether a network has the theorem's own assumptions."""
    return not EXCLUDED & INGREDIENTS[name_of(sweep)].keys()


def _count(sweeps: Sweeps, names: Collection[str], measure: str = BOTH[0]) -> str:
    """Such as "5 of 6 disagree, 0 agree", of the networks that have an exponent."""
    results = (along_depth(sweeps[name], measure) for name in names)
    answers = [against(result) for result in results if of_optima(result)]
    return f"{answers.count(DISAGREES)} of {len(answers)} disagree, {answers.count(AGREES)} agree"


def _assumptions(sweeps: Sweeps, inside: Collection[str]) -> str:
    """The theorem's assumptions, and the answers by loss of the networks inside and outside."""
    counts = (f"{_count(sweeps, names, BOTH[1])} {place}" for place, names in
              (("inside", inside), ("outside", sweeps.keys() - inside)))  # fmt: skip
    return f"The theorem assumes that {ASSUMED}. {PAPER} By {MEASURES[BOTH[1]]} {', '.join(counts)}."


def outcome(sweeps: Sweeps) -> Outcome:
    """Figure 2b is about the baseline, by accuracy."""
    baseline = along_depth(sweeps["full_baseline"])
    residual = {name: sweep for name, sweep in sweeps.items() if name in FULL}
    table = exponent_table(residual, ("accuracy", "Sbar", "theory"), bare)
    return Outcome.of([(words(baseline), against(baseline))], table)


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    results = {label(name): along_depth(sweeps[name]) for name in sweeps}
    return {"fig2b": exponents.pictures(results, "Residual and plain networks, one epoch, by accuracy")}


def ingredient_pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    """The exponent of every ingredient with its interval, by accuracy and by loss."""
    figure = Figure(figsize=(7.2, 0.3 * len(sweeps) + 1.4), layout="constrained")
    panel = figure.subplots()
    for shift, measure in ((-0.12, BOTH[0]), (0.12, BOTH[1])):
        fits = [of_optima(along_depth(sweep, measure)) for sweep in sweeps.values()]
        kept = [(place, *exponents.interval(law)) for place, law in enumerate(fits) if law]
        places, values, low, high = np.array(kept, float).reshape(-1, 4).T
        bars = [values - low, high - values]
        panel.errorbar(values, places + shift, xerr=bars, fmt="o", ms=4, capsize=3, label=MEASURES[measure])
    for at, theory in ((exponents.CLAIMED, "theorem 3"), (-1.0, "Sbar,\none scaled layer"), (0.0, "Sbar,\ntwo")):
        panel.axvline(at, color="gray", lw=0.8, ls=":")
        panel.text(at, 1.02, theory, fontsize=7, ha="center", color="gray", transform=panel.get_xaxis_transform())
    panel.set_yticks(range(len(sweeps)), [label(name) for name in sweeps])
    panel.set_ylim(len(sweeps) - 0.5, -0.5)
    panel.set_xlabel("exponent of the best learning rate over depth")
    panel.legend(fontsize=8)
    return {"ingredients": figure}


EXPERIMENT = Experiment(
    figure="2b",
    claim="all branch weights carry 1/K: exponent -1.435, by theorem 3 -3/2",
    question="And in residual networks?",
    sweeps={**FULL, **fig2a.SWEEPS},
    outcome=outcome,
    pictures=pictures,
    needs=("full_baseline",),
    printed=exponent_table,
)
SCREENED = Experiment(
    figure="Theorem 3",
    claim="ResNets of any branches: exponent -3/2",
    question="For every kind of branch?",
    sweeps=SCREEN,
    outcome=ingredients,
    pictures=ingredient_pictures,
    needs=("screen_baseline",),
    printed=exponent_table,
)

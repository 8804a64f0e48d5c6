"""What is known of the exponents of the best learning rate before a sweep: the prior of `fit.scaling_law`.

    python -m experiments.law_prior  # writes depthmup/fit/generated_priors.toml and prints a table, in half a minute

An exponent says by how many octaves the best base learning rate moves when a size doubles: width, depth, the steps at
one batch size, or the batch size at as many steps. It is one rate for the whole model, in units of the base.

**Means** are those of the tables. A parameterization of maximal update says 0 for width and for depth, muP without a
depth rule too; any other one wants in width what muP, in depth what depth-muP does with the rate of hidden weights in
branches. For steps and batch size it is the mean over the rules of `batch_rules` that move the learning rate.

**Widths** say how far measured exponents lie from the means, beyond their errors. A family is all trainings of one
experiment, or one publication. For each claim (axis, optimizer family, what the parameterization says) the likelihood
of a scatter s is

    log L(s) = sum over families of the mean over its curves of log N(exponent; mean, s^2 + error^2).

Three widths were compared by leaving out one family after the other, of claims with three or more: the s that
maximizes L; that times t / z, the quantiles at 97.5% of Student's t, with as many degrees of freedom as families, and
of the normal distribution; and the median of s, with L as its density. Of those whose intervals hold 95% of the curves
that were left out, the one that gives these the highest likelihood is taken. It is the median; the file has the scores.

**Evidence**: committed rows at the learning rate, by the drifts of `fit.transfer`, where every size has an optimum.
Not in it: a parameterization with an alpha or lr_depth of its own, jumps, where all sizes move at once (they test the
prior below), and every published sweep that a law is tested on, Step Law's and ScaleBench's first of all. A drift's
error is half of its 95% interval over 1.96, which includes the scatter about the line and the resolution of the grid.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from depthmup.files import write_atomically
from depthmup.fit.curve import half_width
from depthmup.fit.drift import Drift
from depthmup.fit.published_rules import PUBLISHED_RULES
from depthmup.fit.thresholds import CONFIDENCE
from depthmup.rules.batch_rules import NOTHING, RULES
from depthmup.rules.optim import family_of
from depthmup.rules.parameterization import TABLES, FamilyName, Parameterization, parameterization
from depthmup.sweep import judge
from depthmup.trials.verdicts import TransferCurve
from experiments import command_line, documents, jump, language, layer_kinds, published, scaling
from experiments.figures import page
from experiments.output import markdown
from experiments.published import ROOT

Axis = Literal["width", "depth", "batch_size", "steps"]
Family = Literal["adam", "sgd"]
AXES: tuple[Axis, ...] = get_args(Axis)  # in the order of the sizes of a jump
FAMILIES: tuple[Family, ...] = get_args(Family)
FILE = ROOT / "depthmup" / "fit" / "generated_priors.toml"
ANY = "any"  # a parameterization that an axis does not name, such as that of another library
NORMAL = half_width(math.inf)
SCATTERS = np.geomspace(0.01, 100, 2001)  # the values of s
LEAST = 3  # families of a claim of which one is left out
HEADER = """\
# The prior of fit.scaling_law, written by `python -m experiments.law_prior`, which explains it: exponents of the best
# base learning rate per doubling of a size, [axis.parameterization.optimizer family]; of the batch size at as many
# steps, of the steps at one batch size. A parameterization that an axis does not name has the row "any". The evidence
# for each sd follows: exponents that were measured, their standard errors, and where they are from.
"""


class Measured(NamedTuple):
    """The exponent of one curve, in units of the base, with its standard error.

    experiment: the family of trainings that it belongs to. source: a file of docs/results/, or a publication.
    """

    experiment: str
    source: str
    name: str
    axis: Axis
    family: Family
    claim: str
    exponent: float
    error: float


def claim(name: str, axis: Axis) -> str:
    """What a parameterization says of one rate along an axis, in words."""
    table = TABLES["sp" if name == ANY else name]
    if axis == "width":
        return "maximal update" if table.width else "one rate"
    if axis == "depth":
        if table.alpha is not None:
            return "depth rule" if table.lr_depth is None else name
        return "muP alone" if table.width else "one rate"
    return ANY


def wanted(axis: Axis, family: Family) -> float:
    """The exponent that `depth_mup` has in the learning rate of hidden weights in branches."""
    width, depth = (2 if axis == name else 1 for name in ("width", "depth"))
    leaf = parameterization("depth_mup").leaf(
        role="hidden", in_branch=True, width=width, depth=depth, fan_in=width, family=family
    )
    return math.log2(leaf.lr)


def by_rules(family: Family) -> dict[Axis, float]:
    """The mean exponents of the rules of batch size and steps that move the learning rate; 0 without any."""
    rows = [row for rows in RULES.values() for row in rows if family in row.families and row.lr != NOTHING]
    batch = [row.lr.batch for row in rows if row.fixed != "batch size"]
    examples = [row.lr.examples for row in rows if row.fixed != "examples"]
    steps = float(np.mean(examples)) if examples else 0.0
    return {"batch_size": float(np.mean(batch)) + steps, "steps": steps}  # as many steps: both ratios are equal


def mean(axis: Axis, of_claim: str, family: Family) -> float:
    if axis in ("batch_size", "steps"):
        return by_rules(family)[axis]
    return wanted(axis, family) if of_claim == "one rate" else 0.0


def error(drift: Drift) -> float:
    return (drift.high - drift.low) / 2 / NORMAL


def of_curves(
    curves: Sequence[TransferCurve], experiment: str, source: str, settings: Any = None
) -> Iterator[Measured]:
    """Those of the learning rate along width and depth. settings: of the config that the curves come from."""
    for c in curves:
        drift, family, name = c.result.drift, family_of(c.optimizer), c.parameterization.split()[0]
        if drift is None or None in c.result.optimal_lr or not c.of_rate or family not in FAMILIES:
            continue
        for axis in AXES[:2]:
            moved = rule_moved(c, name, family, settings) if axis == c.axis else None
            if moved is not None:
                exponent = drift.octaves_per_doubling + (moved if axis == "depth" else 0.0)
                yield Measured(experiment, source, c.name, axis, family, claim(name, axis), exponent, error(drift))


def rule_moved(c: TransferCurve, name: str, family: FamilyName, settings: Any) -> float | None:
    """The exponent of depth in a curve's learning rates minus that of the table; None for a depth rule of its own."""
    if settings is None or TABLES[name].alpha is None:
        return 0.0
    used = c.trials["lr_depth"].iloc[0] if "lr_depth" in c.trials else settings.parameterization.lr_depth
    moved = 0.0 if used is None else float(used) - Parameterization(name).depth_power(family)
    if settings.parameterization.alpha is not None or (moved and name != "am_mup"):
        return None  # am_mup's exponent multiplies every rate, which can be undone
    return moved


def papers() -> Iterator[Measured]:
    """The figures of both papers: a family is one kind of model."""
    for paper in page.PAPERS:
        for name, sweep in page.read(paper).items():
            source = f"docs/results/{paper.name}/{name}.parquet"
            yield from of_curves(sweep.curves, f"{paper.name}, {sweep.settings.model.name}", source, sweep.settings)


def configs() -> Iterator[Measured]:
    """Sweeps of digits and of photo patches."""
    for name in documents.PUBLISHED:
        sweep = documents.read(name)
        yield from of_curves(sweep.curves, name, f"docs/results/{name}.parquet", sweep.settings)


def transformers() -> Iterator[Measured]:
    """GPTs on text, and transformers with other kinds of layers."""
    yield from of_curves(language.published(), "language", "docs/results/language.parquet")
    for kind, rows in layer_kinds.read()[0].astype({"loss": float}).groupby("kind"):
        name = "sp" if kind == layer_kinds.CONTROL else "completep"
        named = rows.drop(columns="kind").assign(optimizer="adamw", parameterization=name)
        curves = judge(named, chance=language.CHANCE).curves
        for m in of_curves(curves, "layer_kinds", "docs/results/layer_kinds.parquet"):
            yield m._replace(name=kind)


def batch_and_steps() -> Iterator[Measured]:
    """Those of experiments/scaling.py, whose batch sizes see as many examples: at as many steps the exponent of the
    steps is added."""
    drifts: dict[str, dict[str, Drift]] = {}
    for c in (*scaling.curves(), *scaling.curves(decay=True)):
        if c.result.drift is not None and None not in c.result.optimal_lr:
            drifts.setdefault(c.optimizer, {})[c.axis] = c.result.drift
    for name, of_case in drifts.items():
        case = scaling.case_of(name)
        family = family_of(scaling.CASES[case]["optimizer"])
        if family not in FAMILIES or len(of_case) < 2:
            continue
        experiment = f"scaling, {'images' if case in scaling.PROBLEMS else 'text'}"
        batch, steps = (of_case[axis] for axis in ("batch_size", "steps"))
        values: dict[Axis, tuple[float, float]] = {
            "steps": (steps.octaves_per_doubling, error(steps)),
            "batch_size": (
                batch.octaves_per_doubling + steps.octaves_per_doubling, math.hypot(error(batch), error(steps)),
            ),
        }  # fmt: skip
        for axis, (exponent, err) in values.items():
            yield Measured(experiment, "docs/results/scaling.parquet", name, axis, family, ANY, exponent, err)


TOKEN_HORIZON = {
    "50M": -0.7029, "125M": -0.6531, "350M": -0.3799, "760M": -0.3155, "1.3B": -0.3171, "2.7B": -0.4184,
}  # fmt: skip
RULES_MEASURED = {"Power scheduler": 0.0, "one-third data scaling": 0.01}  # with the standard errors that are printed


def publications() -> Iterator[Measured]:
    """Exponents of other people's sweeps, of which no law is tested on any."""
    for size, exponent in TOKEN_HORIZON.items():
        source = "arXiv 2409.19913v3, table 5 (batches of half a million tokens), by two notes of readers"
        yield Measured("token horizon", source, size, "steps", "adam", ANY, exponent, 0.0)
    for rule in PUBLISHED_RULES:
        for family in FAMILIES if rule.name in RULES_MEASURED else ():
            if family in rule.families:
                err, steps = RULES_MEASURED[rule.name], rule.exponents["tokens"]
                batch = rule.exponents["batch_size"] + steps
                of_rule = rule.name, rule.source, rule.name
                yield Measured(*of_rule, "steps", family, ANY, steps, err)
                yield Measured(*of_rule, "batch_size", family, ANY, batch, math.hypot(err, err))


SOURCES = (papers, configs, transformers, batch_and_steps, publications)


def measured(sources: Iterable[Callable[[], Iterator[Measured]]] = SOURCES) -> list[Measured]:
    """The evidence. Curves of the same trainings, such as muP and depth-muP at one depth, count once."""
    kept: dict[tuple[Any, ...], Measured] = {}
    for source in sources:
        for m in source():
            kept.setdefault((m.experiment, m.axis, m.family, m.claim, m.exponent, m.error), m)
    return list(kept.values())


Families = Mapping[str, Sequence[Measured]]
Cell = tuple[Axis, str, Family]


def cells(evidence: Sequence[Measured]) -> dict[Cell, dict[str, list[Measured]]]:
    """{axis, claim, optimizer family: {experiment: its curves}}, sorted."""
    result: dict[Cell, dict[str, list[Measured]]] = {}
    for m in evidence:
        result.setdefault((m.axis, m.claim, m.family), {}).setdefault(m.experiment, []).append(m)
    return dict(sorted(result.items(), key=lambda item: (AXES.index(item[0][0]), *item[0][1:])))


def likelihood(center: float, families: Families) -> np.ndarray:
    """log L of the module's docstring at each of SCATTERS."""
    log = np.zeros_like(SCATTERS)
    for curves in families.values():
        off, errors = np.array([(m.exponent - center, m.error) for m in curves]).T
        variances = SCATTERS[:, None] ** 2 + errors**2
        log -= (np.log(variances) + off**2 / variances).mean(axis=1) / 2
    return log


def largest(center: float, families: Families) -> float:
    return float(SCATTERS[likelihood(center, families).argmax()])


def widened(center: float, families: Families) -> float:
    return largest(center, families) * half_width(len(families)) / NORMAL


def median(center: float, families: Families) -> float:
    log = likelihood(center, families)
    below = np.cumsum(np.exp(log - log.max()) * SCATTERS)  # whose steps are proportional to its values
    return float(SCATTERS[np.searchsorted(below, below[-1] / 2)])


ESTIMATORS: dict[str, Callable[[float, Families], float]] = {
    "largest likelihood": largest, "largest likelihood, widened by Student's t": widened, "median": median,
}  # fmt: skip
spread = median


class LeftOut(NamedTuple):
    """Of families that are left out, the means over families. inside: the share of curves inside the 95% interval that
    the other families give. score: the log likelihood of a curve."""

    families: int
    inside: float
    score: float


def left_out(of: Mapping[Cell, Families], estimate: Callable[[float, Families], float]) -> LeftOut:
    inside, scores = [], []
    for cell, families in of.items():
        center = mean(*cell)
        for name, curves in families.items() if len(families) >= LEAST else ():
            sd = estimate(center, {other: of_other for other, of_other in families.items() if other != name})
            off, errors = np.array([(m.exponent - center, m.error) for m in curves]).T
            z = off / np.hypot(sd, errors)
            inside.append(np.mean(np.abs(z) <= NORMAL))
            scores.append(np.mean(-(z**2) / 2 - np.log(np.hypot(sd, errors))))
    return LeftOut(len(scores), float(np.mean(inside)), float(np.mean(scores)))


def chosen(scores: Mapping[str, LeftOut]) -> str:
    """The rule of the module's docstring."""
    return max((name for name, of in scores.items() if of.inside >= CONFIDENCE), key=lambda name: scores[name].score)


class Belief(NamedTuple):
    """The prior of one claim, and the evidence for its sd."""

    mean: float
    sd: float
    families: Families


def beliefs(of: Mapping[Cell, Families]) -> dict[Cell, Belief]:
    return {cell: Belief(mean(*cell), spread(mean(*cell), families), families) for cell, families in of.items()}


def prior(of: Mapping[Cell, Belief]) -> dict[Axis, dict[str, dict[Family, Cell]]]:
    """{axis: {parameterization: {optimizer family: what it claims}}}. Steps and batch size do not ask for the
    parameterization."""
    result: dict[Axis, dict[str, dict[Family, Cell]]] = {axis: {} for axis in AXES}
    for axis in AXES:
        for name in (ANY, *TABLES) if axis in ("width", "depth") else (ANY,):
            for family in FAMILIES:
                if name == ANY or family in TABLES[name].families:
                    result[axis].setdefault(name, {})[family] = (axis, claim(name, axis), family)
    return result


class Moved(NamedTuple):
    """By how many octaves the best rate moves in a jump of experiments/jump.py, which is no evidence of the prior."""

    name: str
    measured: float
    error: float
    predicted: float
    sd: float

    @property
    def inside(self) -> bool:
        return abs(self.measured - self.predicted) <= NORMAL * math.hypot(self.error, self.sd)


def jumps(of: Mapping[Cell, Belief]) -> list[Moved]:
    """What the prior alone predicts of the jumps that follow no rule of batch and steps."""
    result, cells_of = [], prior(of)
    for name, sizes in jump.JUMPS.items():
        doublings = {a: math.log2(big / small) for a, small, big in zip(AXES, sizes.small, sizes.large, strict=True)}
        for case, transferred in jump.curves(sizes).items():
            parameterization_name, rule = sizes.cases[case]
            drift = transferred.drift
            if rule != "none" or drift is None or None in transferred.optimal_lr:
                continue
            octaves = math.log2(transferred.values[-1] / transferred.values[0])
            predicted, variance = 0.0, 0.0
            for axis, number in doublings.items():
                named = cells_of[axis]
                belief = of[named.get(parameterization_name, named[ANY])["adam"]]
                predicted += number * belief.mean
                variance += (number * belief.sd) ** 2
            moved, err = octaves * drift.octaves_per_doubling, octaves * error(drift)
            result.append(Moved(f"{name}, {case}", moved, err, predicted, math.sqrt(variance)))
    return result


def table(of: Mapping[Cell, Belief]) -> str:
    lines = []
    for (axis, of_claim, family), belief in of.items():
        numbers = (f"{belief.mean:+.2f}", f"{belief.sd:.2f}", str(len(belief.families)))
        curves = str(sum(map(len, belief.families.values())))
        lines.append((axis.replace("_", " "), of_claim, family, *numbers, curves))
    return markdown(("exponent of", "claim", "optimizer", "mean", "sd", "families", "curves"), lines)


def text(of: Mapping[Cell, Belief], scores: Mapping[str, LeftOut]) -> str:
    """The file."""
    entries = [HEADER]
    for axis, named in prior(of).items():
        for name, families in named.items():
            for family, cell in families.items():
                values = {"mean": of[cell].mean, "sd": of[cell].sd, "claim": cell[1]}
                entries.append(entry(f"[{axis}.{name}.{family}]", values))
    for (axis, of_claim, family), belief in of.items():
        for experiment, curves in belief.families.items():
            values = {
                "axis": axis, "claim": of_claim, "optimizer": family, "family": experiment,
                "sources": sorted({m.source for m in curves}), "curves": [m.name for m in curves],
                "exponents": [m.exponent for m in curves], "errors": [m.error for m in curves],
            }  # fmt: skip
            entries.append(entry("[[evidence]]", values))
    entries += [entry("[[left_out]]", {"sd": name, **score._asdict()}) for name, score in scores.items()]
    return "\n".join(entries)


def entry(head: str, values: Mapping[str, Any]) -> str:
    return "".join([f"{head}\n", *(f"{key} = {json.dumps(published.rounded(of, 3))}\n" for key, of in values.items())])


def main() -> None:
    command_line.parser("experiments.law_prior", __doc__).parse_args()
    of_cells = cells(measured())
    of, scores = beliefs(of_cells), {name: left_out(of_cells, estimate) for name, estimate in ESTIMATORS.items()}
    write_atomically(FILE, text(of, scores))
    compared = [(name, f"{100 * s.inside:.1f}%", f"{s.score:+.2f}") for name, s in scores.items()]
    moves = [
        (m.name, f"{m.measured:+.2f}", f"{m.predicted:+.2f} +- {NORMAL * m.sd:.2f}", "yes" if m.inside else "no")
        for m in jumps(of)
    ]
    print(table(of))
    print(f"\n{markdown(('sd, of families left out', 'inside', 'log likelihood'), compared)}")
    print(f"\n{markdown(('jump', 'the best rate moves, octaves', 'the prior alone, 95%', 'inside'), moves)}")


if __name__ == "__main__":
    main()

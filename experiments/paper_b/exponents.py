"""How fast the best learning rate falls with depth, and what a claim about it is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas
from matplotlib.figure import Figure

from depthmup.fit import PowerLaw, Transfer, chain_path_sum, power_law, transfer
from depthmup.fit.marks import Mark, paint
from depthmup.fit.verdict import UNLEARNED
from depthmup.models import MODELS
from depthmup.settings import Settings
from experiments.figures.figure import NOTHING, Experiment, Outcome, Part, Sweeps, chance
from experiments.output import UNDECIDED, Interval, decided, markdown, ticks
from experiments.published import SCALE, Sweep

CLAIMED = -1.5  # theorems 1 and 3
FEWEST = 5  # depths that an exponent needs
CLOSE = 0.5  # a claim is confirmed where the interval holds it and nothing as far from it as the rival theories are
EARLY = 100  # steps
# {measure: its words}; the paper judges by the first. first_steps: the mean of the first EARLY steps.
MEASURES = {
    "validation_accuracy": "accuracy",
    "loss": "loss",
    "last_loss": "loss of the last tenth",
    "first_steps": f"loss of the first {EARLY} steps",
}
BOTH = ("validation_accuracy", "loss")
UNKNOWN = "not known"


class Law(NamedTuple):
    """A network whose exponent a figure shows: its sweep, and the depths that are looked at; none: all."""

    sweep: str
    depths: Sequence[int] = ()


def experiment(
    figure: str,
    claim: str,
    laws: Mapping[str, Law],
    *,
    claimed: Sequence[str] = (),
    compared: Mapping[str, str] = MappingProxyType({}),
    compare: Callable[[Transfer, Transfer], Part] | None = None,
    picture: str = "",
    title: str = "",
    **more: Any,
) -> Experiment:
    """A figure of exponents over depth. The picture has those by accuracy, the command prints those by loss, too.

    laws: {network: its law}. claimed: the networks whose exponent is `CLAIMED` by the paper. compared: {network: the
    one that its exponent is compared with}, and by which rule; None: `equal`. title: of the picture.
    """

    def differences(sweeps: Sweeps) -> dict[str, Part]:
        judged = along_depths(sweeps, laws)
        pairs = {name: (judged[base], judged[name]) for name, base in compared.items() if name in judged}
        return {name: (compare or equal)(*pair) for name, pair in pairs.items()}

    def outcome(sweeps: Sweeps) -> Outcome:
        judged = along_depths(sweeps, laws)
        parts = [(f"{name}: {words(judged[name])}", against(judged[name])) for name in claimed]
        parts += [(f"{name} minus {compared[name]}: {text}", answer)
                  for name, (text, answer) in differences(sweeps).items()]  # fmt: skip
        return Outcome.of(parts)

    def drawn(sweeps: Sweeps) -> Mapping[str, Figure]:
        return {picture: pictures(along_depths(sweeps, laws), title)} if picture else {}

    def printed(sweeps: Sweeps) -> str:
        by_accuracy, by_loss = (along_depths(sweeps, laws, measure) for measure in BOTH)
        of_base = {name: text for name, (text, _) in differences(sweeps).items()}
        rows = [[name, words(by_accuracy[name]), words(by_loss[name]), of_base.get(name, "")] for name in by_accuracy]
        return markdown(("exponent of", "by accuracy", "by loss", "difference"), rows)

    return Experiment(figure, claim, outcome=outcome, pictures=drawn, printed=printed, **more)


def along_depths(sweeps: Sweeps, laws: Mapping[str, Law], measure: str = BOTH[0]) -> dict[str, Transfer]:
    """`along_depth` of the laws whose sweeps are finished."""
    finished = {name: law for name, law in laws.items() if law.sweep in sweeps}
    return {name: along_depth(sweeps[law.sweep], measure, law.depths) for name, law in finished.items()}


_JUDGED = dict[tuple[Any, ...], Transfer]()  # of what `along_depth` has judged


def along_depth(
    sweep: Sweep,
    measure: str = "validation_accuracy",
    depths: Sequence[int] = (),
    more: Sweep | None = None,
    factors: Mapping[float, float] | None = None,
) -> Transfer:
    """The optima over depth of a sweep of one curve, judged by one of MEASURES.

    depths: the only ones that are looked at; none: all. more: a sweep of the same networks at other learning rates;
    what both have counts once. factors: {depth: what its learning rates are divided by}, so that one which is carried
    as it is from depth to depth is multiplied by them.
    """
    (c,) = (c for c in sweep.curves if c.axis == "depth")
    trials = pandas.concat([c.trials, *(other.trials for other in (more.curves if more else ()))])
    trials = trials.drop_duplicates(["depth", "learning_rate", "seed"])
    trials = trials[trials["depth"].isin(depths)] if depths else trials
    rows = trials.assign(first_steps=_first_steps(trials))
    if factors:
        rows = rows.assign(learning_rate=rows["learning_rate"] / rows["depth"].map(factors))
    columns = dict.fromkeys(("depth", "learning_rate", "seed", "diverged", "validation_accuracy", measure))
    cap = None if measure == "first_steps" else chance(c, measure)
    table = rows[[*columns]]
    # A page asks for the same optima in many of its lines.
    key = (*columns, table.to_numpy(float).tobytes(), cap, measure)
    if key not in _JUDGED:
        _JUDGED[key] = transfer(table, cap=cap, measure=measure)
    return _JUDGED[key]


def _first_steps(trials: pandas.DataFrame) -> list[float]:
    """The mean training loss of the first EARLY steps, from the published learning curves; NaN for what diverged."""
    result = []
    for curve, steps, diverged in zip(trials["curve"], trials["steps"], trials["diverged"], strict=True):
        early = curve[: max(1, round(len(curve) * EARLY / steps))]
        result.append(math.nan if diverged else float(np.mean(np.asarray(early) / SCALE)))
    return result


def best_rates(result: Transfer) -> list[float | None]:
    """The best learning rate at each depth that counts: at which a network learned, by the rule of verdicts, since what
    is best of networks that guess is noise. None at the others, and where there is no optimum."""
    pairs = zip(result.optimal_lr, result.answers, strict=True)
    return [None if answer == UNLEARNED else rate for rate, answer in pairs]


def of_optima(result: Transfer) -> PowerLaw | None:
    """The law of the best learning rate; None for fewer than FEWEST depths that count and have an optimum."""
    return fitted(result.values, best_rates(result), [o.stderr for o in result.optima])


def of_edges(result: Transfer) -> PowerLaw | None:
    """The law of the edge, above which training is not possible."""
    edges = [o.edge for o in result.optima]
    return fitted(result.values, [e and e.learning_rate for e in edges], [e.stderr if e else math.nan for e in edges])


def fitted(depths: Sequence[float], rates: Sequence[float | None], stderr: Sequence[float]) -> PowerLaw | None:
    """The power law of these learning rates; None for fewer than FEWEST of them."""
    return power_law(depths, rates, stderr) if sum(map(bool, rates)) >= FEWEST else None


def interval(law: PowerLaw) -> Interval:
    """The exponent."""
    return Interval(law.exponent, law.low, law.high)


def text(law: PowerLaw | None) -> str:
    """The exponent; "-" if there is none."""
    return interval(law).text() if law else "-"


def bare(result: Transfer) -> str:
    """The exponent of the best learning rate; "-" if there is none."""
    return text(of_optima(result))


def words(result: Transfer) -> str:
    """The exponent; in brackets how many depths count, if not all, and how many optima are at the edge."""
    law, depths = of_optima(result), len(result.values)
    if result.verdict == NOTHING:
        return "nothing learned"
    if law is None:
        return f"{sum(rate is not None for rate in best_rates(result))} of {depths} depths count"
    notes = [f"{len(law.depths)} of {depths} depths"] if len(law.depths) < depths else []
    if at_edge := sum(o.learning_rate is not None and o.at_edge for o in result.optima):
        notes.append(f"{at_edge} at the edge")
    return f"{text(law)} ({', '.join(notes)})" if notes else text(law)


def against(result: Transfer) -> str:
    """The verdict on the claim that the best learning rate goes as depth to the power CLAIMED: undecided, too, where
    fewer than FEWEST depths have an optimum."""
    return law_against(of_optima(result))


def law_against(law: PowerLaw | None) -> str:
    """As `against`, of a law."""
    return interval(law).against(CLAIMED, CLOSE) if law else UNDECIDED


def apart(first: PowerLaw | float | None, second: PowerLaw | None) -> Interval | None:
    """The second exponent minus the first, which may be a number without an error; None where one is not known."""
    if first is None or second is None:
        return None
    return interval(second).minus(interval(first) if isinstance(first, PowerLaw) else Interval(first, first, first))


def equal(first: Transfer, second: Transfer) -> Part:
    """(in words, verdict) on the claim that two exponents are equal: as `against`, of their difference and 0."""
    return same(of_optima(first), of_optima(second))


def same(first: PowerLaw | None, second: PowerLaw | None) -> Part:
    """As `equal`, of laws."""
    difference = apart(first, second)
    return (difference.text(), difference.against(0, CLOSE)) if difference else (UNKNOWN, UNDECIDED)


def steeper(first: Transfer, second: Transfer) -> Part:
    """(in words, verdict) on the claim that the second exponent is the more negative one."""
    difference = apart(of_optima(first), of_optima(second))
    if difference is None:
        return UNKNOWN, UNDECIDED
    return difference.text(), decided(difference.high < 0, difference.low > 0)


def path_sums(settings: Settings, depths: Sequence[float]) -> dict[float, int]:
    """{depth: PathSum of the network}."""
    model = MODELS[settings.model.name]
    return {d: chain_path_sum(model(width=1, depth=int(d), **settings.model.options).ways) for d in depths}


def by_path_sum(settings: Settings, depths: Sequence[float]) -> float:
    """The exponent of PathSum^(-1/2) over these depths."""
    logs = [-0.5 * math.log2(total) for total in path_sums(settings, depths).values()]
    return float(np.polyfit(np.log2(depths), logs, 1)[0])


def pictures(results: Mapping[str, Transfer], title: str) -> Figure:
    """The paper's axes: the best learning rate over depth, with its law, and L^-3/2 from the smallest depth.

    Of the depths that count. Error bars end at the learning rates that were trained.
    """
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    panel = figure.subplots()
    for place, (name, result) in enumerate(results.items()):
        law = of_optima(result)
        sizes = zip(result.values, result.optima, result.learning_rates, strict=True)
        kept = [at for at, rate in zip(sizes, best_rates(result), strict=True) if rate]
        if not kept:
            continue
        depths, rates = np.array([(d, o.learning_rate) for d, o, _ in kept]).T
        low, high = np.array([np.clip([o.low, o.high], min(trained), max(trained)) for _, o, trained in kept]).T
        marks = [Mark("optima", depths, rates, np.fmin(low, rates), np.fmax(high, rates))]
        if law:
            marks += [Mark("fit", depths, law(depths)), Mark("band", depths, (), *law.band(depths))]
        if place == 0:
            reference = rates[0] * (depths / depths[0]) ** CLAIMED
            panel.plot(depths, reference, color="gray", lw=1, ls="-.", label="depth^-3/2")
        if edges := [(d, o.edge.learning_rate) for d, o, _ in kept if o.edge and o.edge.learning_rate]:
            marks.append(Mark("edges", *np.array(edges).T))
        paint(panel, marks, f"C{place}", f"{name}: {text(law)}" if law else name, place)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set(xlabel="depth", ylabel="best learning rate")
    ticks(panel.xaxis, sorted({d for result in results.values() for d in result.values}))
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize=8)
    panel.set_title(f"{title} (bars and bands: 95%; dotted: edge)", fontsize=10)
    return figure

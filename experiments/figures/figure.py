"""What a figure of a paper has to say: the curves of its sweeps against the paper's claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from depthmup.report import figures
from depthmup.report.curves import TransferCurve
from depthmup.report.page import verdict_table
from experiments.published import RESULTS, ROOT, Sweep

AGREES, DISAGREES, UNDECIDED = "agrees", "disagrees", "undecided at this scale"
TRANSFERS = "transfers"
IMAGES = ROOT / "docs" / "images"
Sweeps = Mapping[str, Sweep]


class Outcome(NamedTuple):
    """ours: our numbers with their intervals, a line each. verdict: AGREES, DISAGREES or UNDECIDED."""

    ours: Sequence[str]
    verdict: str


class Experiment(NamedTuple):
    """One figure of the paper. The docstring of its module has the paper's settings, ours, and why they differ.

    paper: what the paper found.
    sweeps: {name of a sweep: scale ("demo" or "paper") -> its config}. Figures that share a sweep share its trials.
    remarks: what a reader should know beside the numbers: disagreements, and what was tried to explain them.
    classes: of the folder of images that its sweeps are trained on.
    table: the numbers of its section, as Markdown; None: the verdicts of its curves.
    needs: the sweeps without which there is no outcome; the others enter it when they are finished. None named: all.
    """

    figure: str  # such as "1"
    claim: str
    paper: str
    sweeps: Mapping[str, Callable[[str], Any]]
    outcome: Callable[[Sweeps], Outcome]
    pictures: Callable[[Sweeps], Mapping[str, Figure]]
    remarks: str = ""
    classes: int = 10
    table: Callable[[Sweeps], str] | None = None
    needs: Sequence[str] = ()


class Paper(NamedTuple):
    """A paper whose figures are trained anew.

    name: of its package, and of the folders of its rows and pictures. reading: how to read its column "ours".
    figures: {name on the command line: its experiment}. elsewhere: rows of figures that have no module; a row has the
    columns of `page.COLUMNS`.
    """

    name: str
    title: str
    reading: str
    figures: Mapping[str, Experiment]
    elsewhere: Sequence[tuple[str, ...]]

    @property
    def sweeps(self) -> dict[str, Callable[[str], Any]]:
        """{name: scale -> config} of the sweeps of all figures, each once."""
        return {name: config for figure in self.figures.values() for name, config in figure.sweeps.items()}

    @property
    def rows(self) -> Path:
        return RESULTS / self.name

    @property
    def images(self) -> Path:
        return IMAGES / self.name


def curve_of(curves: Sequence[TransferCurve], axis: str, parameterization: str, variant: str = "") -> TransferCurve:
    """The learning-rate curve of these names. Raises StopIteration if there is none."""
    wanted = (axis, parameterization, variant, "learning_rate")
    return next(c for c in curves if (c.axis, c.parameterization, c.variant, c.hyperparameter) == wanted)


def verdict(c: TransferCurve) -> str:
    """The verdict by the drift of the optimum; where that is undecided, the verdict by regret."""
    return c.result.by_regret.verdict if c.result.verdict == "undecided" else c.result.verdict


def words(c: TransferCurve) -> str:
    """A curve's drift, verdict and cost, as `Paper.reading` explains them."""
    found = c.result
    text = f"{c.name} over {c.axis}: "
    if found.drift:
        low, high = found.drift.low, found.drift.high
        text += f"{found.drift.octaves_per_doubling:+.2f} [{low:+.2f}, {high:+.2f}], "
    text += found.verdict
    if found.verdict == "undecided":
        text += f" (by regret: {found.by_regret.verdict})"
    costs = [cost for cost in found.costs[1:] if cost]
    if len(costs) == len(found.costs) - 1:
        worst = max(costs, key=lambda cost: cost.share)
        text += f", costs at most {100 * worst.share:.1f}%"
        text += f" [{100 * worst.low:.1f}, {100 * worst.high:.1f}]"
    return text


def agreement(c: TransferCurve, transfers: bool = True) -> str:
    """What a curve says of the claim that its optimum transfers, or that it does not."""
    said = verdict(c)
    return UNDECIDED if said == "undecided" else AGREES if (said == TRANSFERS) == transfers else DISAGREES


def judged(curves: Sequence[TransferCurve], expected: Mapping[tuple[str, str], bool], variant: str = "") -> Outcome:
    """Our curves against a claim. expected: {(parameterization, axis): whether the claim says that it transfers}."""
    chosen = {curve_of(curves, axis, name, variant): transfers for (name, axis), transfers in expected.items()}
    said = [agreement(c, transfers) for c, transfers in chosen.items()]
    return Outcome([words(c) for c in chosen], combined(said))


def loss_pictures(curves: Mapping[str, Sequence[TransferCurve]]) -> dict[str, Figure]:
    """The loss against the hyperparameter, a line for each size: {name of a picture: its curves} -> {name: picture}."""
    drawn = {name: figures.loss_curves(own) for name, own in curves.items()}
    return {name: figure for name, figure in drawn.items() if figure}


def verdicts(sweep: Sweep) -> str:
    """The drifts and verdicts of a sweep's curves, as a block of Markdown."""
    return "\n".join(f"    {line}".rstrip() for line in verdict_table(sweep.curves).splitlines())


def along(curves: Sequence[TransferCurve], prefix: str) -> dict[str, list[TransferCurve]]:
    """{"prefix_width": the curves over width, "prefix_depth": those over depth}."""
    return {f"{prefix}_{axis}": [c for c in curves if c.axis == axis] for axis in ("width", "depth")}


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, ["---"] * len(columns), *rows))


def combined(said: Sequence[str]) -> str:
    """One disagreement disagrees; else one undecided answer is undecided."""
    return next((word for word in (DISAGREES, UNDECIDED) if word in said), AGREES)

"""docs/results.md: a row for every figure and table of the depthwise-transfer paper, and a section for each of ours."""

from __future__ import annotations

from pathlib import Path

from depthmup.report.page import verdict_table
from depthmup.settings import from_config
from experiments import published
from experiments.paper_a import FIGURES
from experiments.paper_a.elsewhere import ELSEWHERE
from experiments.paper_a.figure import Experiment, Sweeps
from experiments.published import ROOT, Sweep

PAGE = ROOT / "docs" / "results.md"
HEADER = """# Results: the papers' figures, trained anew

    python -m experiments.cifar10_folder DIR           # once: CIFAR-10 of TFDS as a folder of JPEGs, a class each
    python -m experiments.paper_a --data=DIR           # trains what is missing; draws all; writes this page
    python -m experiments.paper_a --data=DIR 1 --dry_run

A row for every figure and table of paper A, "Depthwise hyperparameter transfer". The settings of each experiment beside
the paper's, and why they differ, are at the head of its module in experiments/paper_a/. **CIFAR-10 (JPEG)** is CIFAR-10
with its images as JPEGs of quality 75, here reduced to 16x16 pixels: accuracies are lower than on the published pixels.
Rows are in docs/results/paper_a/; a fresh clone goes on from them.

*ours*: the drift of the best learning rate in octaves (factors of 2) per doubling, with its 95% interval; then what the
best learning rate of the smallest size costs at the other sizes, the worst of them, as a share of the loss. It
*transfers* if the interval is within +-.25 of 0; where that is undecided, the verdict by regret decides: whether the
cost is below 5% at every size ([laws.md](laws.md)).
"""
COLUMNS = ("figure", "claim", "paper", "ours", "verdict", "command")


def read(rows: Path) -> dict[str, Sweep]:
    """The sweeps of all figures whose rows are committed."""
    configs = {name: config for figure in FIGURES.values() for name, config in figure.sweeps.items()}
    there = {name: config for name, config in configs.items() if (rows / f"{name}.json").exists()}
    return {name: published.read(rows / name, from_config(config("demo")), True) for name, config in there.items()}


def text(sweeps: Sweeps) -> str:
    """The page. A figure without all of its trials says so and has no verdict."""
    rows, sections = list(ELSEWHERE), []
    for name, figure in FIGURES.items():
        own = {sweep: sweeps[sweep] for sweep in figure.sweeps if sweep in sweeps}
        ours, verdict = _missing(figure, own), "not finished"
        if not ours:
            found = figure.outcome(own)
            ours, verdict = "<br>".join(found.ours), f"**{found.verdict}**"
            sections.append(_section(figure, own))
        command = f"`python -m experiments.paper_a {name} --data=DIR`"
        rows.append((figure.figure, figure.claim, figure.paper, ours, verdict, command))
    rows = sorted(rows, key=lambda row: (not row[0].startswith("Table"), row[0]))  # the paper's order: digits, letters
    lines = [HEADER, _row(COLUMNS), _row(["---"] * len(COLUMNS)), *map(_row, rows)]
    return "\n".join([*lines, "", *sections])


def _missing(figure: Experiment, sweeps: Sweeps) -> str:
    """What of a figure's trials is missing, in words; "" if nothing is."""
    there = [sweep for sweep in sweeps.values() if sweep.curves]
    if len(there) == len(figure.sweeps):
        return ""
    trials = sum(len(sweep.rows) for sweep in sweeps.values())
    return f"unfinished: {trials:,} trials so far" if trials else "not run yet"


def title(figure: Experiment) -> str:
    """The heading of a figure's section."""
    return figure.figure.capitalize() if figure.figure.startswith("footnote") else f"Figure {figure.figure}"


def _section(figure: Experiment, sweeps: Sweeps) -> str:
    """Pictures, cost, remarks and verdicts of a figure."""
    lines = [f"## {title(figure)}", "", f"{figure.claim}.", ""]
    lines += [line for name in figure.pictures(sweeps) for line in (f"![{name}](images/paper_a/{name}.png)", "")]
    for name, sweep in sweeps.items():
        lines += [f"`{name}`: {len(sweep.rows):,} trials, {sweep.about['minutes']:.0f} minutes.", ""]
    lines += [figure.remarks.strip(), ""] if figure.remarks else []
    for sweep in sweeps.values():
        lines += [f"    {line}".rstrip() for line in verdict_table(sweep.curves).splitlines()] + [""]
    return "\n".join(lines)


def _row(cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"  # type: ignore[call-overload]

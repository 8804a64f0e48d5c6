"""docs/results.md: a row for every figure, table and theorem of the papers, and a section for each of ours."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

from depthmup.models.stack import natural
from depthmup.settings import from_config
from experiments import paper_a, paper_b, published
from experiments.figures.figure import Experiment, Paper, Sweeps, markdown, verdicts
from experiments.published import ROOT, Sweep

PAPERS = (paper_a.PAPER, paper_b.PAPER)
PAGE = ROOT / "docs" / "results.md"
HEADER = """# Results: the papers' figures, trained anew

    python -m experiments.cifar10_folder DIR           # once: CIFAR-10 of TFDS as a folder of JPEGs, a class each
    python -m experiments.paper_a --data=DIR           # trains what is missing; draws all; writes this page
    python -m experiments.paper_b --data=DIR
    python -m experiments.paper_a --data=DIR 1 --dry_run
    python -m experiments.documents                    # this page, its pictures and others, from the committed rows

A row for every figure and table of the papers. The settings of each experiment beside the paper's, and why they differ,
are at the head of its module in experiments/paper_a/ and experiments/paper_b/. **CIFAR-10 (JPEG)** is CIFAR-10 with its
images as JPEGs of quality 75, here reduced to 16x16 pixels or less: accuracies are lower than on the published pixels.
A verdict holds at this scale, small networks and one epoch or less: it does not judge the papers' own trainings.
The rows of all trials are in docs/results/paper_a/ and docs/results/paper_b/; a fresh clone goes on from them.
"""
OTHERS = ("footnote", "Theorem", "Appendix", "Section")  # what has a row and is no figure
COLUMNS = ("figure", "claim", "paper", "ours", "verdict", "command")


def read(paper: Paper) -> dict[str, Sweep]:
    """The sweeps of all figures of a paper whose rows are committed."""
    committed = {name: config for name, config in paper.sweeps.items() if (paper.rows / f"{name}.json").exists()}
    return {
        name: published.read(paper.rows / name, from_config(config("demo")), True) for name, config in committed.items()
    }


def text(sweeps: Mapping[str, Sweeps]) -> str:
    """The page. sweeps: {name of a paper: its sweeps}."""
    return "\n".join([HEADER, *(_of_paper(paper, sweeps[paper.name]) for paper in PAPERS)])


def _of_paper(paper: Paper, sweeps: Sweeps) -> str:
    """The part of one paper. A figure without all of its trials says so; its verdict needs the sweeps of `finished`."""
    rows, sections, shown = list(paper.elsewhere), [], dict[str, str]()  # shown: {sweep: the section of its numbers}
    for name, figure in paper.figures.items():
        complete, left = finished(figure, sweeps), missing(figure, sweeps)
        numbers, verdict = left, "not finished"
        if complete:
            outcome = figure.outcome(complete)
            numbers = "<br>".join([*outcome.ours, left] if left else outcome.ours)
            verdict = f"**{outcome.verdict}**{', so far' if left else ''}"
            sections.append(_section(paper, figure, complete, shown))
            shown |= {} if figure.table else dict.fromkeys(complete.keys() - shown.keys(), title(figure))
        folder = "DIR" if figure.classes == 10 else f"DIR{figure.classes}"
        command = f"`python -m experiments.{paper.name} {name} --data={folder}`"
        rows.append((figure.figure, figure.claim, figure.paper, numbers, verdict, command))
    rows = sorted(rows, key=lambda row: (not row[0].startswith("Table"), natural(row[0])))  # the paper's order
    head = [f"## Paper {paper.title}", "", paper.reading.strip(), ""]
    return "\n".join([*head, markdown(COLUMNS, rows), "", *_totals(sweeps), *sections])


def _totals(sweeps: Sweeps) -> list[str]:
    """How many trainings the rows of a paper are, how long they took, and what the adaptive search saved."""
    if not sweeps:
        return []
    trials, hours = (
        sum(of) for of in zip(*((len(s.rows), s.about["minutes"] / 60) for s in sweeps.values()), strict=True)
    )
    line = f"In all {trials:,} trainings of {len(sweeps)} sweeps, {hours:.0f} hours on one or two cores."
    searched = [sweep for sweep in sweeps.values() if sweep.settings.sweep.adaptive]
    if searched:
        share = 1 - sum(len(sweep.rows) for sweep in searched) / sum(map(_whole_grid, searched))
        line += f" The adaptive search saved {100 * share:.0f}% of the trainings of whole grids."
    return [line, ""]


def finished(figure: Experiment, sweeps: Sweeps) -> Sweeps:
    """The sweeps of a figure whose trials are all there; none if its outcome needs another one."""
    complete = {name: sweeps[name] for name in figure.sweeps if name in sweeps and sweeps[name].curves}
    return complete if set(figure.needs or figure.sweeps) <= complete.keys() else {}


def missing(figure: Experiment, sweeps: Sweeps) -> str:
    """What of a figure's trials is missing, in words; "" if nothing is."""
    complete = finished(figure, sweeps)
    if len(complete) == len(figure.sweeps):
        return ""
    if complete:
        return f"so far {len(complete)} of {len(figure.sweeps)} sweeps"
    trials = sum(len(sweeps[name].rows) for name in figure.sweeps if name in sweeps and not sweeps[name].curves)
    return f"unfinished: {trials:,} trials so far" if trials else "not run yet"


def _cost(sweeps: Sweeps) -> str:
    """A table of trials and minutes, and of what the adaptive search saved."""
    rows = []
    for name, sweep in sweeps.items():
        saved = f"{100 * (1 - len(sweep.rows) / _whole_grid(sweep)):.0f}%" if sweep.settings.sweep.adaptive else "-"
        rows.append([f"`{name}`", f"{len(sweep.rows):,}", f"{sweep.about['minutes']:.0f}", saved])
    return markdown(["sweep", "trials", "minutes", "saved by the adaptive search"], rows)


def _whole_grid(sweep: Sweep) -> int:
    """The trials of every size at every learning rate that was trained at one of them."""
    columns = list(sweep.rows)  # hyperparameters, then results, of which the loss is the first
    sizes = [name for name in columns[: columns.index("loss")] if name != "learning_rate"]
    curve = [name for name in sizes if name not in ("width", "depth", "seed")]
    grids = (trials for _, trials in sweep.rows.groupby(curve, dropna=False))
    return sum(len(trials[sizes].drop_duplicates()) * trials["learning_rate"].nunique() for trials in grids)


def title(figure: Experiment) -> str:
    """The heading of a figure's section."""
    name = figure.figure
    return name[0].upper() + name[1:] if name.startswith(OTHERS) else f"Figure {name}"


def _filled(text: str) -> str:
    """The paragraphs of a text in lines of one length; tables stay."""
    paragraphs = (" ".join(part.split()) if part[0] != "|" else part for part in text.split("\n\n"))
    wrapper = textwrap.TextWrapper(120, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(part if part[0] == "|" else wrapper.fill(part) for part in paragraphs)


def _section(paper: Paper, figure: Experiment, sweeps: Sweeps, shown: Mapping[str, str]) -> str:
    """Pictures, cost, remarks and numbers of a figure, without those that another section has shown."""
    lines = [f"### {title(figure)}", "", f"{figure.claim[0].upper()}{figure.claim[1:]}.", ""]
    lines += [line for name in figure.pictures(sweeps) for line in (f"![{name}](images/{paper.name}/{name}.png)", "")]
    lines += [_cost(sweeps), ""]
    remarks = figure.remarks if isinstance(figure.remarks, str) else figure.remarks(sweeps)
    lines += [_filled(remarks.strip()), ""] if remarks else []
    if figure.table:
        return "\n".join([*lines, figure.table(sweeps), ""])
    for name, sweep in sweeps.items():
        if name in shown:
            anchor = re.sub(r"[^\w -]", "", shown[name].lower()).replace(" ", "-")
            lines += [f"`{name}`: its numbers are at [{shown[name]}](#{anchor}).", ""]
            continue
        lines += [f"`{name}`:", ""] if len(sweeps) > 1 else []
        lines += [verdicts(sweep), ""]
    return "\n".join(lines)

"""docs/results.md: a row for every figure, table and theorem of the papers, and a section for each that has a module.

Its prose is in texts/, with links as from docs/: introduction.md, reading.md and configs.md, and in the folder of each
paper reading.md, the remarks on a figure, NAME.md, and the rows of figures that have no module, elsewhere.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from depthmup.models.stack import natural
from depthmup.report.tables import verdict_table
from depthmup.settings import from_config
from experiments import paper_a, paper_b, published
from experiments.figures.figure import Experiment, Outcome, Paper, Sweeps
from experiments.output import AGREES, DISAGREES, NOT_RUN, UNDECIDED, markdown
from experiments.published import ROOT, Sweep

PAPERS = (paper_a.PAPER, paper_b.PAPER)
PAGE = ROOT / "docs" / "results.md"
TEXTS = Path(__file__).parent / "texts"
FIRST = ("question", "the papers say", "here", "number")
COLUMNS = ("figure", "the paper says", "here", "number")
LABELS = (AGREES, DISAGREES, UNDECIDED, NOT_RUN, "-")  # of a row; "-": a definition, which says nothing to test
OTHERS = ("footnote", "Theorem", "Appendix", "Section")  # what has a row and is no figure


def read(paper: Paper) -> dict[str, Sweep]:
    """The sweeps of all figures of a paper whose rows are committed."""
    committed = {name: config for name, config in paper.sweeps.items() if (paper.rows / f"{name}.json").exists()}
    so_far = {name for figure in paper.figures.values() for name in figure.so_far}
    return {
        name: published.read(paper.rows / name, from_config(config()), extended=True, so_far=name in so_far)
        for name, config in committed.items()
    }


def text(sweeps: Mapping[str, Sweeps]) -> str:
    """The page. sweeps: {name of a paper: its sweeps}."""
    outcomes = {paper.name: judged(paper, sweeps[paper.name]) for paper in PAPERS}
    every = [sweep for paper in PAPERS for sweep in sweeps[paper.name].values()]
    hours = sum(sweep.about["minutes"] for sweep in every) / 60
    trained = f"In all {sum(len(sweep.rows) for sweep in every):,} trainings of {len(every)} sweeps, {hours:.0f} hours."
    parts = [included("introduction"), _first(sweeps, outcomes), included("reading"), trained]
    parts += [_of_paper(paper, sweeps[paper.name], outcomes[paper.name]) for paper in PAPERS]
    return "\n\n".join(filter(None, [*parts, included("configs")])) + "\n"


def judged(paper: Paper, sweeps: Sweeps) -> dict[str, Outcome]:
    """The outcomes of the figures that have the sweeps that they need."""
    complete = {name: finished(figure, sweeps) for name, figure in paper.figures.items()}
    return {name: paper.figures[name].outcome(of_figure) for name, of_figure in complete.items() if of_figure}


def included(name: str) -> str:
    """The text of a file in texts/, such as "paper_a/1"; "" if there is none."""
    path = TEXTS / f"{name}.md"
    return path.read_text().strip() if path.exists() else ""


def _first(sweeps: Mapping[str, Sweeps], outcomes: Mapping[str, Mapping[str, Outcome]]) -> str:
    """The questions that the page answers first."""
    rows = []
    for paper in PAPERS:
        asked = {
            one.figure: name for name, one in paper.figures.items() if one.question and name in outcomes[paper.name]
        }
        for name in (asked[figure] for figure in ordered(asked)):
            figure, row = paper.figures[name], _row(paper, name, sweeps[paper.name], outcomes[paper.name])
            rows.append((f"[{figure.question}](#{anchor(figure)}) ({paper.title[0]} {figure.figure})", *row[1:]))
    return markdown(FIRST, rows)


def ordered(figures: Iterable[str]) -> list[str]:
    """In the order of the paper."""
    return sorted(figures, key=lambda name: (not name.startswith("Table"), natural(name)))


def _of_paper(paper: Paper, sweeps: Sweeps, outcomes: Mapping[str, Outcome]) -> str:
    """The part of one paper: a row for each figure that `_first` lacks, and a section for each that has an outcome."""
    rows, sections = {row[0]: row for row in elsewhere(paper)}, {}
    for name, figure in paper.figures.items():
        if name in outcomes:
            sections[figure.figure] = _section(paper, name, finished(figure, sweeps), outcomes[name])
        if name not in outcomes or not figure.question:
            rows[figure.figure] = _row(paper, name, sweeps, outcomes)
    parts = [f"## Paper {paper.title}", included(f"{paper.name}/reading"), "Not in the first table:"]
    parts.append(markdown(COLUMNS, (rows[name] for name in ordered(rows))))
    return "\n\n".join(filter(None, [*parts, *(sections[name] for name in ordered(sections))]))


def _row(paper: Paper, name: str, sweeps: Sweeps, outcomes: Mapping[str, Outcome]) -> tuple[str, ...]:
    """The cells of COLUMNS. A figure without all of its trials says so; its verdict needs the sweeps of `finished`."""
    figure, left = paper.figures[name], missing(paper.figures[name], sweeps)
    if name not in outcomes:
        return figure.figure, figure.claim, NOT_RUN, "-" if left == NOT_RUN else left
    verdict, number, _ = outcomes[name]
    label, so_far = f"[{figure.figure}](#{anchor(figure)})", ", so far" if left else ""
    shown = verdict if verdict == NOT_RUN else f"**{verdict}**"
    return label, figure.claim, f"{shown}{so_far}", "; ".join(filter(None, (number, left)))


def elsewhere(paper: Paper) -> list[tuple[str, ...]]:
    """The rows of figures that have no module, with the cells of COLUMNS: other experiments show them, or nothing."""
    lines = included(f"{paper.name}/elsewhere").splitlines()[2:]
    return [tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in lines]


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
    return f"unfinished: {trials:,} trials so far" if trials else NOT_RUN


def title(figure: Experiment) -> str:
    """The heading of a figure's section."""
    name = figure.figure
    return name[0].upper() + name[1:] if name.startswith(OTHERS) else f"Figure {name}"


def anchor(figure: Experiment) -> str:
    return re.sub(r"[^\w -]", "", title(figure).lower()).replace(" ", "-")


def _section(paper: Paper, name: str, sweeps: Sweeps, outcome: Outcome) -> str:
    """The command, remarks, pictures and numbers of a figure."""
    figure = paper.figures[name]
    command = f"`{paper.name} {name}{'' if figure.classes == 10 else f' --data=DIR{figure.classes}'}`"
    pictures = (f"![{picture}](images/{paper.name}/{picture}.png)" for picture in figure.pictures(sweeps))
    parts = [f"### {title(figure)}", command, included(f"{paper.name}/{name}"), *pictures, outcome.table]
    return "\n\n".join(filter(None, parts))


def details(figure: Experiment, sweeps: Sweeps) -> str:
    """A figure's numbers: those of docs/results.md, then more, then optima and edges of its sweeps at every size."""
    complete = finished(figure, sweeps)
    if not complete:
        return f"{title(figure)}: {missing(figure, sweeps)}"
    verdict, number, table = figure.outcome(complete)
    optima = (f"{name}:\n\n{verdict_table(sweep.curves)}" for name, sweep in complete.items())
    return "\n\n".join(
        filter(None, [f"{title(figure)}: {verdict}: {number}", table, figure.printed(complete), *optima])
    )

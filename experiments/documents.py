"""The documents' tables and pictures that come from sweeps, made again from committed rows; no training.

    python -m experiments.documents                                     makes all of them again, in a minute
    python -m experiments.documents publish digits_transfer runs/digits_whole
                                                                        commits the rows of a finished sweep
    python -m experiments.documents rules                               prints how far rules of learning rates are off

docs/results/ has the rows (`experiments.published`). docs/results.md is written whole; in others a table stands between
the lines <!-- NAME: TABLE --> and <!-- end -->.
"""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections.config_dict import ConfigDict

from configs import patches16_simple_resnet, patches16_vit, transfer
from depthmup.fit.picture import draw
from depthmup.report import panels, words
from depthmup.settings import Settings, from_config
from depthmup.trials.verdicts import TransferCurve
from experiments import (
    choose,
    command_line,
    coordinate_checks,
    design,
    embedding,
    hundred_million,
    jump,
    language,
    law,
    layer_kinds,
    planted_targets,
    planted_verdicts,
    predictions,
    published,
    quantities,
    scaling,
    step_law,
    tune,
)
from experiments.figures import command
from experiments.figures.figure import IMAGES, save
from experiments.figures.page import PAPERS
from experiments.output import markdown
from experiments.published import RESULTS, ROOT, Sweep

DOCUMENTS = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            *("batch", "laws", "guide/choose", "language", "checks", "published-runs", "large-run"),
            *("predictions", "disputes"),
        )
    ),
)
RATIO = 8  # of depths, in the tables of rules
BLOCK = re.compile(r"(<!-- (\w+): ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
COST = re.compile(r"(<!-- cost: ([^>]*?) -->)[^<]*(<!-- end -->)")  # in a sentence, of quantities.results


# Sweeps whose rows are committed, besides those of the papers' figures.
PUBLISHED: dict[str, Callable[[], ConfigDict]] = {
    "digits_transfer": functools.partial(transfer.get_config, "whole"),
    "patches16_simple_resnet": patches16_simple_resnet.get_config,
    "patches16_vit": patches16_vit.get_config,
}


def settings_of(name: str) -> Settings:
    return from_config(PUBLISHED[name]())


def read(name: str) -> Sweep:
    """The published sweep. Raises ValueError if its rows were computed with other settings than its config has."""
    return published.read(RESULTS / name, settings_of(name))


def publish(name: str, workdir: Path) -> None:
    """Write the rows of the finished sweep in `workdir` to docs/results."""
    published.write(RESULTS / name, settings_of(name), workdir)


def draw_sweep(sweep: Sweep) -> None:
    """Losses and optima over depth."""
    curves = [c for c in sweep.curves if (c.axis, c.hyperparameter) == ("depth", "learning_rate")]
    drawn = panels.losses(curves), panels.optima_panels(curves)
    save(IMAGES, {picture.name: draw(picture) for picture in drawn})


def rules(curves: Sequence[TransferCurve]) -> str:
    """A Markdown table: how many octaves each rule is off the best learning rate at RATIO times the tuned depth.

    In brackets is the regret: the loss at the rule's learning rate minus the smallest loss; x: that learning rate
    diverges or lies outside the grid. -: the rule predicts nothing; "no optimum": that depth has none inside the grid.
    """
    ruled = {c: {rule.name: rule for rule in c.laws.rules} for c in curves if c.laws.rules}
    names = list(dict.fromkeys(name for of_curve in ruled.values() for name in of_curve))
    lines = []
    for c, of_curve in ruled.items():
        depths, cells = list(c.result.values), []
        at = depths.index(RATIO * depths[c.laws.rules[0].tuned])
        for name in names:
            rule = of_curve.get(name)
            predicted, off, regret = (rule.predicted[at], rule.octaves_off[at], rule.regret[at]) if rule else [None] * 3
            loss = "x" if regret is None else f"{regret:.3f}"
            missing = "-" if predicted is None else "no optimum"
            cells.append(missing if off is None else f"{off:+.2f} ({loss})")
        lines.append((c.title, *cells))
    return markdown(("", *names), lines)


TABLES: dict[str, Callable[[Sweep], str]] = {
    "rules at 8 times the depth": lambda sweep: rules(sweep.curves),
    "answers over depth": lambda sweep: textwrap.indent(
        words.answers([c for c in sweep.curves if c.axis == "depth"]), "    "
    ),
}


def _numbers(name: str) -> Any:
    """What an experiment has written to docs/results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


OTHERS: dict[str, Callable[[Mapping[str, Sweep]], str]] = {
    "planted": lambda _: planted_verdicts.summary(_numbers("planted_curves"), _numbers("planted_verdicts")),
    "choose": choose.table,
    "step_law": lambda _: step_law.table_of_predictions(),
    "step_law_costs": lambda _: step_law.table_of_costs(),
    "design_scalebench": lambda _: design.table_scalebench(_numbers("design")),
    "design_planted": lambda _: design.table_planted(_numbers("design")),
    "tune": lambda _: tune.table(_numbers("tune")),
    "planted_targets": lambda _: planted_targets.summary(_numbers("planted_targets")),
    "law_example": lambda _: law.text_of_example(_numbers("law")),
    "law_published": lambda _: law.table_published(_numbers("law")),
    "law_scalebench": lambda _: law.table_scalebench(_numbers("law")),
    "law_rows": lambda _: law.table_rows(_numbers("law")),
    "law_planted": lambda _: law.table_planted(_numbers("law")),
    "language": lambda _: language.tables(),
    "embedding": lambda _: embedding.table(),
    "layer_kinds": lambda _: layer_kinds.table(),
    "checks_networks": lambda _: coordinate_checks.networks(),
    "checks_rules": lambda _: coordinate_checks.rules(),
    "checks_sizes": lambda _: coordinate_checks.sizes(),
    "scaling_rules": lambda _: scaling.table(),
    "scaling_decays": lambda _: scaling.decays(),
    "predictions": lambda _: predictions.table(),
    "jump_steps": lambda _: jump.table(jump.JUMPS["steps"]),
    "hundred_million": lambda _: hundred_million.table(hundred_million.read()),
    "hundred_million_short": lambda _: hundred_million.table_in_short(hundred_million.read()),
    "jump_batch": lambda _: jump.table(jump.JUMPS["batch"]),
}


def rendered(text: str, sweeps: Mapping[str, Sweep]) -> str:
    """A document's text with its tables made again. Raises KeyError for a sweep or a table that is not known."""

    def made(block: re.Match[str]) -> str:
        head, name, table, end = block.groups()
        content = OTHERS[name](sweeps) if name in OTHERS else TABLES[table](sweeps[name])
        return f"{head}\n{content}\n\n{end}"

    return COST.sub(lambda m: f"{m[1]}{quantities.results()[m[2]].cost}{m[3]}", BLOCK.sub(made, text))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line.parser("experiments.documents", __doc__)
    what = parser.add_subparsers(dest="what", metavar="publish|rules")
    commit = what.add_parser("publish", help="commit the rows of a finished sweep")
    commit.add_argument("name", choices=PUBLISHED)
    commit.add_argument("workdir", type=Path)
    what.add_parser("rules", help="print how far rules of learning rates are off")
    options = parser.parse_args(arguments)
    if options.what == "publish":
        publish(options.name, options.workdir)
    sweeps = {name: read(name) for name in PUBLISHED}
    if options.what == "rules":
        print("\n\n".join(f"{name}\n\n{rules(sweep.curves)}" for name, sweep in sweeps.items()))
        return
    draw_sweep(sweeps["digits_transfer"])
    for document in DOCUMENTS:
        path = ROOT / document
        path.write_text(rendered(path.read_text(), sweeps))
        print(path)
    language.draw()
    scaling.draw()
    jump.draw()
    hundred_million.draw()
    command.draw(*PAPERS)


if __name__ == "__main__":
    main()

"""How many octaves is each rule off the best learning rate, at a multiple of the tuned depth?

    python -m experiments.learning_rate_rules 8 runs/digits_transfer runs/patches16_simple_resnet runs/patches16_vit

The first argument is this multiple, the others are workdirs of finished sweeps, whose summary.json is read. In
brackets is the regret: the loss at the rule's learning rate minus the smallest loss; x: that learning rate diverges or
lies outside the grid. -: the rule predicts nothing; "no optimum": that depth has none inside the grid.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.output import markdown


def table(summary: Mapping[str, Any], ratio: float) -> str:
    """A Markdown table from the content of a summary.json. Raises ValueError if no depth is `ratio` times the first."""
    curves = [curve for curve in summary["sweeps"] if curve["rules"]]
    names = list(dict.fromkeys(name for curve in curves for name in curve["rules"]))
    lines = []
    for curve in curves:
        first, depths = next(iter(curve["rules"].values()))["tuned"], curve["values"]
        if ratio * first not in depths:
            raise ValueError(f"depth {ratio * first:g} was not swept, only {depths}")
        at, cells = depths.index(ratio * first), []
        for name in names:
            rule = curve["rules"].get(name)
            predicted, off, regret = (rule[key][at] if rule else None for key in ("predicted", "octaves_off", "regret"))
            loss = "x" if regret is None else f"{regret:.3f}"
            missing = "-" if predicted is None else "no optimum"
            cells.append(missing if off is None else f"{off:+.2f} ({loss})")
        label = " ".join(filter(None, (curve["optimizer"], curve["parameterization"], curve["variant"])))
        lines.append((label, *cells))
    return markdown(("", *names), lines)


def main(ratio: float, workdirs: Sequence[Path]) -> None:
    for workdir in workdirs:
        summary = json.loads((workdir / "summary.json").read_text())
        print(f"\n{summary['settings']['model.name']}, {workdir}, {ratio:g} times the depth\n\n{table(summary, ratio)}")


if __name__ == "__main__":
    main(float(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]])

"""How many octaves is each rule off the best learning rate, at a multiple of the tuned depth?

    python -m experiments.learning_rate_rules 8 runs/digits_transfer runs/patches16_simple_resnet runs/patches16_vit

The first argument is this multiple, the others are workdirs of finished sweeps, whose summary.json is read. In
brackets is the regret: the loss at the rule's learning rate minus the smallest loss.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path


def main(ratio: float, workdirs: Sequence[Path]) -> None:
    for workdir in workdirs:
        summary = json.loads((workdir / "summary.json").read_text())
        curves = [curve for curve in summary["sweeps"] if curve["rules"]]
        model = summary["settings"]["model.name"]
        names = list(dict.fromkeys(name for curve in curves for name in curve["rules"]))
        print(f"\n{model}, {workdir}\n{'':34}{'depths':9}" + "".join(f"{name:>16}" for name in names))
        for curve in curves:
            first, depths = next(iter(curve["rules"].values()))["tuned"], curve["values"]
            if ratio * first not in depths:
                sys.exit(f"{workdir}: depth {ratio * first:g} was not swept, only {depths}")
            at, cells = depths.index(ratio * first), []
            for name in names:
                rule = curve["rules"].get(name)
                off, regret = (rule[key][at] if rule else None for key in ("octaves_off", "regret"))
                loss = "x" if regret is None else f"{regret:.3f}"
                cells.append("none" if off is None else f"{off:+.2f} ({loss})")
            label = f"{curve['optimizer']} {curve['parameterization']} {curve['variant']}"
            print(f"{label:34}{f'{first:g}, {depths[at]:g}':9}" + "".join(f"{cell:>16}" for cell in cells))
    print("\nx: it diverges or lies outside the grid; none: no prediction, or no optimum inside the grid at that depth")


if __name__ == "__main__":
    main(float(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]])

"""What is known before any training: the maximal update (Sbar) and the sharpness of networks over their depth.

    python -m experiments.paper_b.initial --data=DIR [NETWORK ...]

measures the residual networks of ingredients.py and the plain ones of figure 2a, writes
docs/results/paper_b/initial.json after every network, goes on from what is there, and prints the exponents over depth.
DIR as in experiments/figures/command.py. Of each network at each depth, from the first batch of 128 images and SEEDS
seeds:

- s_l, the mean square change of each layer in a step of learning rate 1, and the layers' own mean squares
  (`measure.maximal_update`), to four digits;
- log2 of 2 / the sharpness, the largest eigenvalue of the loss's Hessian: above this learning rate gradient descent is
  not stable at the start (`measure.sharpness`).

Cost: 19 networks of 8 to 12 depths, an hour on two cores. Expect: docs/theory.md, section 6.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from depthmup.backend import prepare_cpu
from depthmup.files import write_atomically
from depthmup.report.calibration import calibrate
from depthmup.settings import Settings
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from depthmup.train.quantities import QUANTITIES
from experiments import command_line
from experiments.figures.command import settings_of
from experiments.output import markdown
from experiments.paper_b import fig2a, ingredients, networks
from experiments.paper_b.at_start import FILE, of_sharpness, of_update, read
from experiments.paper_b.averages import MEANS
from experiments.paper_b.exponents import text
from experiments.published import rounded

SEEDS = 4


def measured(settings: Settings) -> dict[str, Any]:
    """The entry of the network of these settings, at their depth."""
    sweep = dataclasses.replace(settings.sweep, seeds=SEEDS)
    with warnings.catch_warnings():  # deep for the width: seeds scatter, which the intervals show
        warnings.simplefilter("ignore", UserWarning)
        calibration = calibrate(dataclasses.replace(settings, sweep=sweep))
    task, batch = task_of(settings), examples(batches_of(settings), settings.data.batch_size)
    sharpness = jax.jit(lambda hyper, batch: QUANTITIES["sharpness"].measure(task, task.init(hyper), batch, hyper)[0])
    trials = [dataclasses.replace(settings, seed=settings.seed + seed) for seed in range(SEEDS)]
    edges = [float(np.log2(2 / sharpness(hyper_of(trial).arrays(), batch))) for trial in trials]
    return {
        "changes": rounded(calibration.per_seed.tolist(), 4),
        "squares": rounded(calibration.mean_squares.tolist(), 4),
        "log2_edges": [round(edge, 3) for edge in edges],
    }


def wanted(data: str | None) -> dict[str, dict[int, Settings]]:
    """{network: {depth: settings}} of all that is measured."""
    result = {}
    for sweep, config in {**ingredients.SCREEN, **fig2a.SWEEPS}.items():
        settings = settings_of(config(), data)
        depths = {*settings.sweep.depths, *(() if sweep in fig2a.SWEEPS else networks.FULL_DEPTHS)}
        models = {depth: dataclasses.replace(settings.model, depth=depth) for depth in sorted(depths)}
        of_depth = {depth: dataclasses.replace(settings, model=model) for depth, model in models.items()}
        result[ingredients.name_of(sweep)] = of_depth
    return result


def main() -> None:
    parser = command_line.parser("experiments.paper_b.initial", __doc__, "network", wanted(None))
    parser.add_argument("--data", required=True, help="folder of CIFAR-10: train/CLASS/*.jpg, test/CLASS/*.jpg")
    options = parser.parse_args()
    known = wanted(options.data)
    content = json.loads(FILE.read_text()) if FILE.exists() else {}
    try:
        for name in options.networks:
            of_network = content.setdefault(name, {})
            for depth in (depth for depth in known[name] if str(depth) not in of_network):
                print(f"{name}, depth {depth}", flush=True)
                of_network[str(depth)] = measured(known[name][depth])
                write_atomically(FILE, json.dumps(content) + "\n")
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(exponents(options.networks))


def exponents(names: Sequence[str]) -> str:
    """A table of the exponents over all measured depths, over those of the screens, and over figure 2a's halves."""
    rows = []
    for name in names:
        start, parts = read(name), (fig2a.SHALLOW, fig2a.DEEP) if name == "plain" else (networks.SCREEN_DEPTHS,)
        for depths in (sorted(start), *parts):
            laws = [*(of_update(start, depths, mean) for mean in MEANS), of_sharpness(start, depths)]
            rows.append([name, ", ".join(f"{depth:g}" for depth in depths), *map(text, laws)])
    return markdown(["network", "depths", *(f"Sbar, {mean}" for mean in MEANS), "2 / sharpness"], rows)


if __name__ == "__main__":
    prepare_cpu()
    main()

"""Coordinate checks of every family, in width and depth, SGD and Adam; docs/checks.md has their tables.

    python -m experiments.coordinate_checks [CASE ...] [--processes 2]      trains; goes on where it stopped
    python -m experiments.documents                                        the tables, from the committed rows

A case is a family with its options and one optimizer. It is checked under several parameterizations, which share
compiled programs. docs/results/checks/*.json has the rows of finished cases. All cases take about two hours on two
cores.
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from configs import default
from depthmup.backend import prepare_cpu
from depthmup.files import write_atomically
from depthmup.measure.slope import NOT_OK, OK, UNDECIDED, SlopeEstimate, overall
from depthmup.settings import from_config
from depthmup.train.check import check_optimizer
from experiments import command_line
from experiments.output import markdown
from experiments.published import RESULTS

FOLDER = RESULTS / "checks"
SEEDS = {"seeds": 8, "max_seeds": 128}
OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}
PLAIN = ("depth_mup", "sp")  # parameterizations of plain networks: without branches depth_mup equals mup
ALL = ("depth_mup", "depth_ode", "mup", "sp")


class Case(NamedTuple):
    """One family with its options, and how it is checked."""

    name: str
    family: str
    options: dict[str, Any]
    parameterizations: tuple[str, ...]
    # Values of config.check that differ from configs/default.py.
    check: dict[str, Any] = {}  # noqa: RUF012 - never changed


DENSE = {"depths": (8, 16, 32, 64), "width": 128, "depth": 4, "steps": (1, 4), "batch_size": 8}
DENSE["log2_learning_rates"] = {"sgd": -14.0, "adam": -14.0}
SLOW = {"width": 32, "log2_learning_rates": {"sgd": -9.0, "adam": -12.0}}
ONE = {"beta0": 1.0, "widths": (), "max_seeds": 32}
CASES = (
    Case("vit, layer norm", "vit", {}, ("depth_mup", "depth_ode", "sp")),
    Case("vit, no norm", "vit", {"norm": "none"}, PLAIN, {"beta0": 0.5}),
    Case("vit, no norm, beta0 1", "vit", {"norm": "none"}, ("depth_mup",), ONE),
    Case("simple_resnet, no norm", "simple_resnet", {}, ALL),
    Case(
        "simple_resnet, batch norm", "simple_resnet", {"norm": "batch"}, ("depth_mup", "mup", "sp"), {"beta0": 1 / 32}
    ),
    Case("simple_resnet, batch norm, beta0 1", "simple_resnet", {"norm": "batch"}, ("depth_mup",), ONE),
    Case("residual_cnn, no norm", "residual_cnn", {}, ("depth_mup", "depth_ode", "sp"), {"widths": (64, 128, 256)}),
    Case("residual_cnn, batch norm", "residual_cnn", {"norm": "batch"}, PLAIN, SLOW),
    Case("resnet, batch norm", "resnet", {}, PLAIN, {"widths": (32, 64, 128)}),
    Case("resnet, layer norm", "resnet", {"norm": "layer"}, PLAIN, {"widths": (32, 64, 128)}),
    Case("resnet, batch norm, beta0 1", "resnet", {}, ("depth_mup",), ONE),
    Case("resnet, no norm", "resnet", {"norm": "none"}, PLAIN, {"widths": (32, 64, 128), "beta0": 0.5}),
    Case("cnn", "cnn", {}, PLAIN, {"depths": (3, 4, 8, 16), "width": 64}),
    Case("residual_mlp, no norm", "residual_mlp", {}, ALL, DENSE),
    Case("residual_mlp, layer norm", "residual_mlp", {"norm": "layer", "use_bias": True}, ALL, DENSE),
    Case("mlp", "mlp", {}, PLAIN, {**DENSE, "depths": (4, 8, 16, 32), "width": 256}),
)
REPORTED = [case for case in CASES if not case.name.endswith("beta0 1")]  # the others are repetitions


def path_of(case: Case, optimizer: str) -> Path:
    return FOLDER / f"{case.name}, {optimizer}.json".replace(", ", "_").replace(" ", "_")


def config_of(case: Case) -> Any:
    config = default.get_config(case.family)
    config.model.update(case.options)
    config.check.update(SEEDS | case.check)
    return config


def identity_of(case: Case, optimizer: str) -> Any:
    """The settings that decide a case's numbers, as read back from JSON."""
    check = config_of(case).check.to_dict()
    check["log2_learning_rates"] = check["log2_learning_rates"][optimizer]
    del check["optimizers"]
    names = {"family": case.family, "parameterizations": case.parameterizations, "optimizer": optimizer}
    return json.loads(json.dumps({**names, "options": case.options, "check": check}))


def finished(case: Case, optimizer: str) -> list[dict[str, Any]] | None:
    """The rows of a finished case; None if its file is missing or was made with other settings."""
    path = path_of(case, optimizer)
    content = json.loads(path.read_text()) if path.exists() else {"case": None}
    return content["rows"] if content["case"] == identity_of(case, optimizer) else None


def run(case: Case, optimizer: str) -> None:
    """Check one case, unless it is finished, and write its rows as JSON."""
    if finished(case, optimizer):
        return
    config, rows = config_of(case), []
    for name in case.parameterizations:
        config.parameterization.name = name
        report = check_optimizer(from_config(config), optimizer)
        for s in report.slopes:
            row = {k: v for k, v in s._asdict().items() if k not in ("changes", "sizes")}
            rows.append({"parameterization": name, **row, "seeds": s.changes.shape[1]})
        print(f"{case.name}, {optimizer}, {name}: {report.verdict}", flush=True)
    identity, lines = json.dumps(identity_of(case, optimizer)), ",\n".join(map(json.dumps, rows))
    write_atomically(path_of(case, optimizer), f'{{"case": {identity},\n"rows": [\n{lines}\n]}}\n')


def judged(case: Case, optimizer: str, name: str) -> list[dict[str, Any]]:
    """The judged slopes under the parameterization `name`. Raises FileNotFoundError if the case is not finished."""
    rows = finished(case, optimizer)
    if rows is None:
        command = f"python -m experiments.coordinate_checks '{case.name}'"
        raise FileNotFoundError(f"{path_of(case, optimizer)}: run {command}")
    return [{**row, "optimizer": optimizer} for row in rows if row["parameterization"] == name and row["answer"]]


def worst(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the slopes that have the answer of all, the one farthest from 0, NaN being farthest."""
    answer = overall([r["answer"] for r in rows])
    slopes = [r for r in rows if r["answer"] == answer]
    return max(slopes, key=lambda r: (math.isnan(r["plain"][0]), abs(r["plain"][0])))


def words(row: dict[str, Any]) -> str:
    """A slope, along depth that beside a term 1/depth, and what was trained."""
    beside = f", with 1/depth {SlopeEstimate(*row['limit'])}" if row["limit"] else ""
    return f"{SlopeEstimate(*row['plain'])}{beside}; {row['group']}, {OPTIMIZERS[row['optimizer']]}, {row['axis']}"


def verdicts(rows: list[dict[str, Any]], axis: str) -> str:
    """The verdict along an axis, with each optimizer where they differ; "" where nothing was measured."""
    answers = {name: [r["answer"] for r in rows if (r["axis"], r["optimizer"]) == (axis, name)] for name in OPTIMIZERS}
    of_optimizer = {OPTIMIZERS[name]: overall(of_name) for name, of_name in answers.items() if of_name}
    if len(set(of_optimizer.values())) < 2:
        return next(iter(of_optimizer.values()), "")
    return ", ".join(f"{label} {answer}" for label, answer in of_optimizer.items())


def label_of(case: Case) -> str:
    """The case's name with its beta0 where that is not 1."""
    beta0 = Fraction(config_of(case).check.beta0)
    return case.name if beta0 == 1 else f"{case.name}, beta0 {beta0}"


def networks() -> str:
    """A Markdown table: what each case says under `depth_mup`."""
    rows = []
    for case in CASES:
        slopes = [row for optimizer in OPTIMIZERS for row in judged(case, optimizer, "depth_mup")]
        rows.append((label_of(case), verdicts(slopes, "width"), verdicts(slopes, "depth"), words(worst(slopes))))
    return markdown(("network", "over width", "over depth", "largest slope"), rows)


def rules() -> str:
    """A Markdown table: how many checks of each parameterization have which verdict along each axis."""
    rows = []
    for name in ALL:
        cases = [case for case in REPORTED if name in case.parameterizations]
        cells = []
        for axis in ("width", "depth"):
            answers = [
                overall([row["answer"] for row in judged(case, optimizer, name) if row["axis"] == axis])
                for case, optimizer in itertools.product(cases, OPTIMIZERS)
            ]
            counts = {answer: answers.count(answer) for answer in (OK, UNDECIDED, NOT_OK)}
            cells.append(", ".join(f"{count} {answer}" for answer, count in counts.items() if count))
        rows.append((f"`{name}`", str(len(cases)), *cells))
    return markdown(("rule", "networks", "over width", "over depth"), rows)


def sizes() -> str:
    """A Markdown table: widths, depths and learning rates; networks with the same ones share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for case in REPORTED:
        check = config_of(case).check
        axes = ((check.widths, "depth", check.depth), (check.depths, "width", check.width))
        lines = (f"{', '.join(map(str, values))} at {other} {size}" for values, other, size in axes)
        rates = ", ".join(f"2^{check.log2_learning_rates[optimizer]:g}" for optimizer in OPTIMIZERS)
        rows.setdefault((*lines, rates), []).append(case.name)
    columns = ("network", "widths", "depths", "learning rates, SGD and Adam")
    return markdown(columns, [("; ".join(names), *row) for row, names in rows.items()])


def main() -> None:
    parser = command_line.parser("experiments.coordinate_checks", None, "case", [case.name for case in CASES])
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in CASES if case.name in options.cases]
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=1) as pool:
        pool.starmap(run, itertools.product(chosen, OPTIMIZERS), chunksize=1)


if __name__ == "__main__":
    prepare_cpu(1)
    main()

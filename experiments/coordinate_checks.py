"""Coordinate checks of every family, in width and depth, SGD and Adam: `make checks` writes docs/checks.md.

    python -m experiments.coordinate_checks docs/results/checks [NAME ...] [--processes 2]

A case is a family with its options and one optimizer. It is checked under several parameterizations, which share
compiled programs. Finished cases are kept in docs/results/checks/*.json, so you may interrupt the command and start
it again. It takes about two hours on two cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from configs import default
from depthmup.backend import prepare_cpu
from depthmup.files import write_atomically
from depthmup.measure.slope import OK, Estimate, overall
from depthmup.settings import from_config
from depthmup.train.check import check_optimizer

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "checks.md"
SEEDS = {"seeds": 8, "max_seeds": 128}
HEADER = """# Coordinate checks

    make checks        # about two hours on two cores; goes on where it stopped

Each family is trained for a few steps on images of 8x8 digits, all parameters together and each group of parameters
alone, with small learning rates, in the absolute form (base width and base depth 1). A number is the slope of log2 RMS
change since initialization over log2 width or depth, with its 95% interval over seeds: 0 is flat. *features* and
*logits*: all trained together, after the last step.

A slope is **ok** if its interval is within +-.1, *not ok* if it is beyond even when corrected for the number of slopes,
else *undecided*. Along depth a slope that falls like 1/depth is no fault: the slope beside a term 1/depth counts too.
An axis is ok if all of its slopes are, not ok if one is not. Seeds are added from {seeds} up to {max_seeds} while it is
undecided. What is judged, and why so: [rules.md](rules.md), section 0. Logits along width are judged for the readout
alone: their slope is below 0 as long as noise of order 1/width adds to them. *decisive*: of the slopes with the axis'
answer, after 1 step and after the last, the one farthest from 0, what was trained, and along depth the slope beside the
term 1/depth.

`depth_mup` multiplies branches by beta0 depth^-1/2, `depth_ode` by beta0 depth^-1. nan or inf: it blew up. Below 1,
beta0 was lowered until the correction of small depth was small, as each family's section says; the papers and the
configs have 1.
"""
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
    note: str = ""


NO_BRANCH = (
    "Without branches `depth_mup` is `mup` and claims nothing along depth: there the updates of all layers add up to "
    "depth^(3/2) ([theory.md](theory.md), section 6a), which is the slope of the hidden weights. Along width it must "
    "be flat."
)
CLASS_TOKEN = (
    "`depth_ode` with SGD is not flat for biases outside the branches: its branches vanish at initialization, and "
    "behind a class token the patches reach the logits through branches only, so that their gradient falls as "
    "depth^-1/2. Adam does not see the size of a gradient; with pool='mean' the slope is -.09."
)
NO_NORM = (
    "`check.beta0` is 1/2 here. The MLP's output has variance 1/width, not 1/fan_in (as in the paper): without norm a "
    "branch has about 1.7 times the stream's variance, so that the stream grows like (1 + c beta0^2 / depth)^depth, c "
    "near 2, whose correction at small depth is of order c^2/depth. At beta0 = 1 it is larger, see below."
)
NO_NORM_RESNET = (
    "`check.beta0` is 1/2 here, as for the ViT without norm: a branch of two convolutions has the stream's "
    "variance. The readout's slope along width is that of small widths, where the size of the features still "
    "fluctuates: for the ResidualCNN without norm it fell from +.12 over widths 32 to 128 to +.02 over 64 to 256."
)
LAYER_NORM_RESNET = (
    "A layer norm over each channel's plane gives a branch size 1 as batch norm does: the same small beta0."
)
BATCH_NORM = (
    "`check.beta0` is small here: 1/16, for SimpleResNet 1/32. Batch norm gives a branch size 1 however small the "
    "stream is (average pooling shrinks it), so that sensitivities grow like (1 + c beta0^2 / depth)^depth with a "
    "large c, and with them the correction at small depth. SimpleResNet's branch/hidden has +.44 (Adam) at beta0 = 1/4 "
    "and +.11 at 1/16; at 1/4 its local slope falls from .46 (depth 16 to 32) to .18 (32 to 64) and .10 (64 to 96; 4 "
    "seeds)."
)
AT_ONE = "The same at `check.beta0` 1, the papers' value: at these depths the correction of small depth is not small."
ODE = (
    "`depth_ode` is not quite flat in depth with SGD: with alpha = 1 the branches vanish at initialization like "
    "depth^-1/2, and the size of the stream at the readout still falls at these depths, towards that of the read-in."
)
DENSE = {"depths": (8, 16, 32, 64), "width": 128, "depth": 4, "steps": (1, 4), "batch_size": 8}
DENSE["log2_learning_rates"] = {"sgd": -14.0, "adam": -14.0}
ONE = {"beta0": 1.0, "widths": (), "max_seeds": 32}
CASES = (
    Case("vit, layer norm", "vit", {}, ("depth_mup", "depth_ode", "sp"), note=CLASS_TOKEN),
    Case("vit, no norm", "vit", {"norm": "none"}, PLAIN, {"beta0": 0.5}, NO_NORM),
    Case("vit, no norm, beta0 1", "vit", {"norm": "none"}, ("depth_mup",), ONE, AT_ONE),
    Case("simple_resnet, no norm", "simple_resnet", {}, ALL),
    Case(
        "simple_resnet, batch norm",
        "simple_resnet",
        {"norm": "batch"},
        ("depth_mup", "mup", "sp"),
        {"beta0": 1 / 32},
        BATCH_NORM,
    ),
    Case("simple_resnet, batch norm, beta0 1", "simple_resnet", {"norm": "batch"}, ("depth_mup",), ONE, AT_ONE),
    Case(
        "residual_cnn, no norm", "residual_cnn", {}, ("depth_mup", "depth_ode", "sp"), {"widths": (64, 128, 256)}, ODE
    ),
    Case(
        "residual_cnn, batch norm",
        "residual_cnn",
        {"norm": "batch"},
        PLAIN,
        {"width": 32, "log2_learning_rates": {"sgd": -9.0, "adam": -12.0}},
    ),
    Case("resnet, batch norm", "resnet", {}, PLAIN, {"widths": (32, 64, 128)}, BATCH_NORM),
    Case("resnet, layer norm", "resnet", {"norm": "layer"}, PLAIN, {"widths": (32, 64, 128)}, LAYER_NORM_RESNET),
    Case("resnet, batch norm, beta0 1", "resnet", {}, ("depth_mup",), ONE, AT_ONE),
    Case("resnet, no norm", "resnet", {"norm": "none"}, PLAIN, {"widths": (32, 64, 128), "beta0": 0.5}, NO_NORM_RESNET),
    Case("cnn", "cnn", {}, PLAIN, {"depths": (3, 4, 8, 16), "width": 64}, NO_BRANCH),
    Case("residual_mlp, no norm", "residual_mlp", {}, ALL, DENSE),
    Case("residual_mlp, layer norm", "residual_mlp", {"norm": "layer", "use_bias": True}, ALL, DENSE),
    Case("mlp", "mlp", {}, PLAIN, {**DENSE, "depths": (4, 8, 16, 32), "width": 256}, NO_BRANCH),
)


def path_of(case: Case, optimizer: str, folder: Path) -> Path:
    return folder / f"{case.name}, {optimizer}.json".replace(", ", "_").replace(" ", "_")


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


def finished(case: Case, optimizer: str, folder: Path) -> Any:
    """The rows of a finished case; None if its file is missing or was made with other settings."""
    path = path_of(case, optimizer, folder)
    content = json.loads(path.read_text()) if path.exists() else {"case": None}
    return content["rows"] if content["case"] == identity_of(case, optimizer) else None


def run(case: Case, optimizer: str, folder: Path) -> None:
    """Check one case, unless it is finished, and write its rows as JSON."""
    path, identity = path_of(case, optimizer, folder), identity_of(case, optimizer)
    if finished(case, optimizer, folder):
        return
    config, rows = config_of(case), []
    for name in case.parameterizations:
        config.parameterization.name = name
        for s in check_optimizer(from_config(config), optimizer).slopes:
            row = {k: v for k, v in s._asdict().items() if k not in ("changes", "sizes")}
            rows.append({"parameterization": name, **row, "seeds": s.changes.shape[1]})
        said = (f"{axis} {decisive(own)}" for axis in ("width", "depth") if (own := judged(rows, name, axis)))
        print(f"{case.name}, {optimizer}, {name}: {'; '.join(said)}", flush=True)
    lines = ",\n".join(map(json.dumps, rows))
    write_atomically(path, f'{{"case": {json.dumps(identity)},\n"rows": [\n{lines}\n]}}\n')


def of(rows: list[dict[str, Any]], name: str, axis: str, **wanted: Any) -> list[dict[str, Any]]:
    wanted |= {"parameterization": name, "axis": axis}
    return [r for r in rows if all(r[k] == v for k, v in wanted.items())]


def judged(rows: list[dict[str, Any]], name: str, axis: str) -> list[dict[str, Any]]:
    return [r for r in of(rows, name, axis) if r["answer"]]


def worst(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the judged slopes that have the answer of all, the one farthest from 0, NaN being farthest."""
    said = overall([r["answer"] for r in rows])
    return max(
        (r for r in rows if r["answer"] == said), key=lambda r: (r["plain"][0] != r["plain"][0], abs(r["plain"][0]))
    )


def decisive(rows: list[dict[str, Any]]) -> str:
    """The answer of all judged slopes and the slope that decides it, in words."""
    row = worst(rows)
    return f"{row['answer']} {Estimate(*row['plain'])} ({row['group']}, step {row['step']}, {row['seeds']} seeds)"


def bold(answer: str) -> str:
    return f"**{answer}**" if answer == OK else answer


def summary(cases: Sequence[Case], folder: Path) -> list[str]:
    """A table: for each case, beta0 and the decisive slopes under depth_mup and under sp."""
    columns = [(name, axis, o) for name in ("depth_mup", "sp") for axis in ("width", "depth") for o in ("sgd", "adam")]
    lines = ["| decisive | beta0 | " + " | ".join(f"{name}, {axis}, {o}" for name, axis, o in columns) + " |"]
    lines.append("|---" * (len(columns) + 2) + "|")
    for case in cases:
        cells = [case.name, f"{config_of(case).check.beta0:g}"]
        for name, axis, optimizer in columns:
            rows = finished(case, optimizer, folder)
            own = judged(rows or [], name, axis)
            missing = "not run yet" if rows is None else ""
            cells.append(f"{bold(worst(own)['answer'])} {worst(own)['plain'][0]:+.2f}" if own else missing)
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def table(case: Case, axis: str, folder: Path) -> list[str]:
    """A case's table along one axis."""
    check = config_of(case).check
    lines = ["", f"| {axis} | | features | logits | decisive | |", "|---|---|---|---|---|---|"]
    for optimizer in ("sgd", "adam"):
        rows = finished(case, optimizer, folder)
        if rows is None:
            lines.append(f"| | {optimizer} | not run yet | | | |")
            continue
        for name in case.parameterizations:
            all_last = (
                of(rows, name, axis, group="all", step=check.steps[-1], quantity=q) for q in ("hidden", "logits")
            )
            shown = [str(Estimate(*found[0]["plain"])) if found else "" for found in all_last]
            row = worst(judged(rows, name, axis))
            words = f"{Estimate(*row['plain'])} {row['group']}"
            words += f"; with 1/depth {Estimate(*row['limit'])}" if row["limit"] else ""
            lines.append("| " + " | ".join((name, optimizer, *shown, words, bold(row["answer"]))) + " |")
    return lines


def page(cases: Sequence[Case], folder: Path) -> str:
    """The text of docs/checks.md from the finished cases, with a table for each case and axis."""
    lines = [HEADER.format(**SEEDS), *summary(cases, folder)]
    for case in cases:
        check = config_of(case).check
        options = "".join(f", {k}={v!r}" for k, v in case.options.items())
        rates = ", ".join(f"2^{check.log2_learning_rates[o]:g} ({o})" for o in ("sgd", "adam"))
        axes = {
            "width": f"widths {check.widths} at depth {check.depth}",
            "depth": f"depths {check.depths} at width {check.width}",
        }
        axes = {axis: text for axis, text in axes.items() if getattr(check, f"{axis}s")}
        lines += [f"## {case.name}", "", f"`{case.family}{options}`, `check.beta0={check.beta0:g}`; "]
        lines[-1] += f"{', '.join(axes.values())}; learning rates {rates}; "
        lines[-1] += f"{check.seeds} to {check.max_seeds} seeds; {check.steps[-1]} steps on {check.batch_size} images."
        lines += ["", case.note] if case.note else []
        for axis in axes:
            lines += table(case, axis, folder)
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.coordinate_checks")
    parser.add_argument("folder", type=Path, help="where finished cases are kept")
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases to run; none: all")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    unknown = set(options.names) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no case {sorted(unknown)}; there are {[case.name for case in CASES]}")
    options.folder.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in CASES if not options.names or case.name in options.names]
    jobs = [(case, optimizer, options.folder) for case in chosen for optimizer in ("sgd", "adam")]
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=1) as pool:
        pool.starmap(run, jobs, chunksize=1)
    PAGE.write_text(page(CASES, options.folder))
    print(f"table: {PAGE}")


if __name__ == "__main__":
    prepare_cpu(1)
    main()

"""Coordinate checks of every family, in width and depth, SGD and Adam: `make checks` writes docs/checks.md.

    python -m experiments.coordinate_checks runs/checks [NAME ...]

A case is a family with its options and one optimizer. It is checked under several parameterizations, which share
compiled programs. Finished cases are kept in runs/checks/*.json, so you may interrupt the command and start it again.
It uses two processes and takes about an hour on two cores.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from configs import default
from depthmup.backend import prepare_cpu
from depthmup.settings import from_config
from depthmup.train.check import check_optimizer
from depthmup.train.workdir import write_atomically

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "checks.md"
HEADER = """# Coordinate checks

    make checks        # about an hour on two cores; goes on where it stopped

Each family is trained for a few steps on images of 8x8 digits, all parameters together and each group of parameters
alone, with small learning rates, in the absolute form (base width and base depth 1). A number is the slope of log2 RMS
change since initialization over log2 width or depth, after the last step, with its 95% interval over seeds ({few} seeds
for what is far from flat): 0 is flat. *features* and *logits*: all trained together. *farthest*: of all judged slopes,
after 1 step and after the last, the one farthest from 0, and what was trained. **ok**: all judged slopes are within .1
of 0. What is judged: docs/rules.md section 0. Logits along width are not: below 0 while 1/width noise adds to them.

`depth_mup` multiplies branches by depth^-1/2, `depth_ode` by depth^-1. nan or inf: it blew up.
"""
PLAIN = ("depth_mup", "sp")  # parameterizations of plain networks: without branches depth_mup equals mup
FEW = 3  # number of seeds for parameterizations whose slopes are far from 0
ALL = ("depth_mup", "depth_ode", "mup", "sp")


class Case(NamedTuple):
    """One family with its options, and how it is checked."""

    name: str
    family: str
    options: dict[str, Any]
    parameterizations: tuple[str, ...]
    seeds: tuple[int, int] = (16, 12)  # for SGD, for Adam
    # Values of config.check that differ from configs/default.py.
    check: dict[str, Any] = {}  # noqa: RUF012 - never changed
    note: str = ""


NO_BRANCH = (
    "Without branches `depth_mup` is `mup` and claims nothing along depth: there the updates of all layers add up to "
    "depth^(3/2) (docs/theory.md section 6a), which is the slope of the hidden weights. Along width it must be flat."
)
CLASS_TOKEN = (
    "`depth_ode` with SGD is not flat for biases outside the branches: its branches vanish at initialization, and "
    "behind a class token the patches reach the logits through branches only, so that their gradient falls as "
    "depth^-1/2. Adam does not see the size of a gradient; with pool='mean' the slope is -.09."
)
NO_NORM = (
    "`check.beta0` is 1/2 here. The MLP's output has variance 1/width, not 1/fan_in (as in the paper): without norm a "
    "branch has about 1.7 times the stream's variance, so that the stream grows like (1 + c beta0^2 / depth)^depth, c "
    "near 2, whose correction at small depth is of order c^2/depth. At beta0 = 1 the slopes along depth are +.35 [.24, "
    ".47] (branch/hidden, SGD) and +.16 [.08, .24] (Adam) over the same depths."
)
NO_NORM_RESNET = (
    "`check.beta0` is 1/2 here, as for the ViT without norm: a branch of two convolutions has the stream's "
    "variance. The readout's +.10 along width (SGD) is that of small widths, where the size of the features still "
    "fluctuates: for the ResidualCNN without norm it fell from +.12 over widths 32 to 128 to +.02 over 64 to 256."
)
BATCH_NORM = (
    "`check.beta0` is small here: 1/16, for SimpleResNet 1/32. Batch norm gives a branch size 1 however small the "
    "stream is (average pooling shrinks it), so that sensitivities grow like (1 + c beta0^2 / depth)^depth with a "
    "large c, and with them the correction at small depth. At beta0 = 1 the slopes along depth are +.4 to +.8. "
    "SimpleResNet's branch/hidden has +.44 (Adam) at 1/4 and +.11 at 1/16; at 1/4 its local slope falls from .46 "
    "(depth 16 to 32) to .18 (32 to 64) and .10 (64 to 96; 4 seeds)."
)
ODE = (
    "`depth_ode` is not quite flat in depth with SGD: with alpha = 1 the branches vanish at initialization like "
    "depth^-1/2, and the size of the stream at the readout still falls at these depths, towards that of the read-in."
)
DENSE = {"depths": (8, 16, 32, 64), "width": 128, "depth": 4, "steps": (1, 4), "batch_size": 8}
DENSE["log2_learning_rates"] = {"sgd": -14.0, "adam": -14.0}
CASES = (
    Case("vit, layer norm", "vit", {}, ("depth_mup", "depth_ode", "sp"), note=CLASS_TOKEN),
    Case("vit, no norm", "vit", {"norm": "none"}, PLAIN, (32, 12), {"beta0": 0.5}, NO_NORM),
    Case("simple_resnet, no norm", "simple_resnet", {}, ALL, (32, 12)),
    Case(
        "simple_resnet, batch norm",
        "simple_resnet",
        {"norm": "batch"},
        ("depth_mup", "mup", "sp"),
        (24, 16),
        {"beta0": 1 / 32},
        BATCH_NORM,
    ),
    Case(
        "residual_cnn, no norm",
        "residual_cnn",
        {},
        ("depth_mup", "depth_ode", "sp"),
        (32, 12),
        {"widths": (64, 128, 256)},
        ODE,
    ),
    Case(
        "residual_cnn, batch norm",
        "residual_cnn",
        {"norm": "batch"},
        PLAIN,
        check={"width": 32, "log2_learning_rates": {"sgd": -9.0, "adam": -12.0}},
    ),
    Case("resnet, batch norm", "resnet", {}, PLAIN, (24, 12), {"widths": (32, 64, 128)}, BATCH_NORM),
    Case(
        "resnet, no norm",
        "resnet",
        {"norm": "none"},
        PLAIN,
        (32, 8),
        {"widths": (32, 64, 128), "beta0": 0.5},
        NO_NORM_RESNET,
    ),
    Case("cnn", "cnn", {}, PLAIN, (32, 12), {"depths": (3, 4, 8, 16), "width": 64}, NO_BRANCH),
    Case("residual_mlp, no norm", "residual_mlp", {}, ALL, (32, 12), DENSE),
    Case("residual_mlp, layer norm", "residual_mlp", {"norm": "layer", "use_bias": True}, ALL, (16, 12), DENSE),
    Case("mlp", "mlp", {}, PLAIN, (32, 12), {**DENSE, "depths": (4, 8, 16, 32), "width": 256}, NO_BRANCH),
)


def path_of(case: Case, optimizer: str, folder: Path) -> Path:
    return folder / f"{case.name}, {optimizer}.json".replace(", ", "_").replace(" ", "_")


def config_of(case: Case, optimizer: str) -> Any:
    config = default.get_config(case.family)
    config.model.update(case.options)
    config.check.update(case.check)
    config.check.seeds = case.seeds[optimizer == "adam"]
    return config


def identity_of(case: Case, optimizer: str) -> Any:
    """The settings that decide a case's numbers, as read back from JSON."""
    check = config_of(case, optimizer).check.to_dict()
    check["log2_learning_rates"] = check["log2_learning_rates"][optimizer]
    del check["optimizers"], check["tolerance"]
    names = {"family": case.family, "parameterizations": case.parameterizations, "optimizer": optimizer}
    return json.loads(json.dumps({**names, "options": case.options, "check": check, "few": FEW}))


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
    config, rows = config_of(case, optimizer), []
    seeds = config.check.seeds
    for name in case.parameterizations:
        config.parameterization.name = name
        config.check.seeds = seeds if name.startswith("depth") else FEW
        for s in check_optimizer(from_config(config), optimizer).slopes:
            row = {k: v for k, v in s._asdict().items() if k not in ("changes", "sizes")}
            rows.append({"parameterization": name, **row})
        verdicts = f"{verdict(rows, name, 'width')}; {verdict(rows, name, 'depth')}"
        print(f"{case.name}, {optimizer}, {name}: {verdicts}", flush=True)
    write_atomically(path, json.dumps({"case": identity, "rows": rows}, indent=1))


def of(rows: list[dict[str, Any]], name: str, axis: str, **wanted: Any) -> list[dict[str, Any]]:
    wanted |= {"parameterization": name, "axis": axis}
    return [r for r in rows if all(r[k] == v for k, v in wanted.items())]


def verdict(rows: list[dict[str, Any]], name: str, axis: str) -> str:
    """The judged slope farthest from 0, in words."""
    judged = of(rows, name, axis, judged=True)
    worst = max(judged, key=distance)
    ok = "ok" if all(r["ok"] for r in judged) else "NOT OK"
    interval = f"[{worst['low']:+.2f}, {worst['high']:+.2f}]"
    return f"{axis} {ok} {worst['slope']:+.2f} {interval} ({worst['group']}, step {worst['step']})"


def cell(row: dict[str, Any] | None, name: bool = False) -> str:
    if row is None:
        return ""
    text = f"{row['slope']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
    return f"{text} {row['group']}" if name else text


def summary(cases: Sequence[Case], folder: Path) -> list[str]:
    """A table: for each case, the judged slopes farthest from 0 under depth_mup and under sp."""
    optimizers = ("sgd", "adam")
    columns = [(name, axis, o) for name in ("depth_mup", "sp") for axis in ("width", "depth") for o in optimizers]
    lines = ["| farthest from 0 | " + " | ".join(f"{name}, {axis}, {o}" for name, axis, o in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for case in cases:
        cells = []
        for name, axis, optimizer in columns:
            judged = of(finished(case, optimizer, folder) or [], name, axis, judged=True)
            text = f"{max(judged, key=distance)['slope']:+.2f}" if judged else "not run yet"
            cells.append(f"**{text}**" if judged and all(r["ok"] for r in judged) else text)
        lines.append(f"| {case.name} | " + " | ".join(cells) + " |")
    return [*lines, "", "Bold: ok.", ""]


def page(cases: Sequence[Case], folder: Path) -> str:
    """The text of docs/checks.md from the finished cases, with a table for each case."""
    lines = [HEADER.format(few=FEW), *summary(cases, folder)]
    for case in cases:
        check, adam = (config_of(case, optimizer).check for optimizer in ("sgd", "adam"))
        options = "".join(f", {k}={v!r}" for k, v in case.options.items())
        options += "" if check.beta0 == 1 else f"`, `check.beta0={check.beta0:g}"
        rates = ", ".join(f"2^{check.log2_learning_rates[o]:g} ({o})" for o in ("sgd", "adam"))
        shapes = f"widths {check.widths} at depth {check.depth}, depths {check.depths} at width {check.width}"
        lines += [f"## {case.name}", "", f"`{case.family}{options}`; {shapes}; learning rates {rates}; "]
        lines[-1] += f"{check.seeds} and {adam.seeds} seeds; {check.steps[-1]} steps on {check.batch_size} images."
        lines += ["", case.note] if case.note else []
        for axis in ("width", "depth"):
            lines += ["", f"| {axis} | | features | logits | farthest | |", "|---|---|---|---|---|---|"]
            for optimizer in ("sgd", "adam"):
                rows = finished(case, optimizer, folder)
                if rows is None:
                    lines.append(f"| | {optimizer} | not run yet | | | |")
                    continue
                for name in case.parameterizations:
                    last = {"group": "all", "step": check.steps[-1]}
                    features, logits = (of(rows, name, axis, quantity=q, **last) for q in ("hidden", "logits"))
                    judged = of(rows, name, axis, judged=True)
                    worst = max(judged, key=distance)
                    ok = "**ok**" if all(r["ok"] for r in judged) else "not ok"
                    cells = (name, optimizer, cell(features[0]), cell(logits[0]), cell(worst, name=True), ok)
                    lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def distance(row: dict[str, Any]) -> float:
    """The distance of a row's slope from 0; infinity for NaN."""
    return abs(row["slope"]) if row["slope"] == row["slope"] else float("inf")


if __name__ == "__main__":
    prepare_cpu(1)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [c for c in CASES if not sys.argv[2:] or c.name in sys.argv[2:]]
    jobs = [(case, optimizer, folder) for case in chosen for optimizer in ("sgd", "adam")]
    with multiprocessing.get_context("spawn").Pool(min(2, os.cpu_count() or 1), maxtasksperchild=1) as pool:
        pool.starmap(run, jobs, chunksize=1)
    PAGE.write_text(page(CASES, folder))
    print(f"table: {PAGE}")

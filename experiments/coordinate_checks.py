"""Coordinate checks of every family, in width and depth, SGD and Adam: `make checks` writes docs/checks.md.

    python -m experiments.coordinate_checks runs/checks [NAME ...]

One case is one family with its options and one optimizer, under several parameterizations, which share compiled
programs. Finished cases are kept in runs/checks/*.json: interrupt it when you like. Two processes; about an hour on two
cores.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "checks.md"
TOLERANCE = 0.1
HEADER = """# Coordinate checks

    make checks        # about an hour on two cores; goes on where it stopped

Each family is trained for {steps} steps on 8 images of 8x8 digits, all parameters together and each group of parameters
alone, at three or four widths and at four depths, with small learning rates, in the absolute form (base width and base
depth 1). A number is the slope of log2 RMS change since initialization over log2 width or depth, after {steps} steps,
with its 95% interval over seeds ({sgd} for SGD, {adam} for Adam, {few} for what is far from flat): 0 is flat.
*features* and *logits*: trained all together. *farthest*: of all judged slopes, after 1 and {steps} steps, the one
farthest from 0, and what was trained. **ok**: all judged slopes are within {tolerance} of 0. What is judged:
docs/rules.md section 0. Logits along width are not judged: below 0 while 1/width noise adds to them at small width.

`depth_mup` multiplies branches by depth^-1/2, `depth_ode` by depth^-1. nan or inf: it blew up.
"""
PLAIN = ("depth_mup", "sp")  # without branches depth_mup is mup
STEPS = (1, 4)
SEEDS = {"sgd": 32, "adam": 12}
FEW = 3  # seeds for what is far from flat
RESIDUAL = ("depth_mup", "depth_ode", "mup", "sp")
SHORT = ("depth_mup", "depth_ode", "sp")


class Case(NamedTuple):
    """Widths are checked at `depth`, depths at `width`; log2_lr: of SGD and Adam, in the absolute form."""

    name: str
    family: str
    options: dict[str, Any]
    parameterizations: tuple[str, ...]
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    width: int
    depth: int
    log2_lr: tuple[float, float]
    note: str = ""


NO_BRANCH = (
    "Without branches `depth_mup` is `mup` and claims nothing along depth: there the updates of all layers add up to "
    "depth^(3/2) (docs/theory.md section 6a), which is the slope of the hidden weights. Along width it must be flat."
)
# fmt: off
CASES = (
    Case("vit, layer norm", "vit", {}, SHORT, (64, 128, 256), (8, 12, 16, 32), 64, 4, (-12, -13)),
    Case("vit, no norm", "vit", {"norm": "none"}, SHORT, (64, 128, 256), (8, 12, 16, 32), 64, 4, (-12, -13)),
    Case("resnet, batch norm", "resnet", {}, SHORT, (8, 16, 32), (3, 4, 6, 10), 16, 2, (-10, -12)),
    Case("resnet, no norm", "resnet", {"norm": "none"}, SHORT, (8, 16, 32), (3, 4, 6, 10), 16, 2, (-10, -12)),
    Case("simple_resnet, no norm", "simple_resnet", {}, RESIDUAL, (128, 256, 512), (8, 12, 16, 32), 256, 4, (-5, -10)),
    Case("simple_resnet, batch norm", "simple_resnet", {"norm": "batch"}, SHORT,
         (128, 256, 512), (8, 12, 16, 32), 256, 4, (-5, -10)),
    Case("residual_cnn, no norm", "residual_cnn", {}, SHORT, (32, 64, 128), (8, 12, 16, 32), 64, 4, (-11, -13)),
    Case("residual_cnn, batch norm", "residual_cnn", {"norm": "batch"}, SHORT,
         (32, 64, 128), (8, 12, 16, 32), 32, 4, (-9, -12)),
    Case("cnn", "cnn", {}, PLAIN, (32, 64, 128), (3, 4, 8, 16), 64, 3, (-11, -13), NO_BRANCH),
    Case("residual_mlp, no norm", "residual_mlp", {}, RESIDUAL,
         (64, 128, 256, 512), (8, 16, 32, 64), 128, 4, (-14, -14)),
    Case("residual_mlp, layer norm and biases", "residual_mlp", {"norm": "layer", "use_bias": True}, RESIDUAL,
         (64, 128, 256, 512), (8, 16, 32, 64), 128, 4, (-14, -14)),
    Case("mlp", "mlp", {}, PLAIN, (64, 128, 256, 512), (4, 8, 16, 32), 256, 4, (-14, -14), NO_BRANCH),
)
# fmt: on


def path_of(case: Case, optimizer: str, folder: Path) -> Path:
    return folder / f"{case.name}, {optimizer}.json".replace(", ", "_").replace(" ", "_")


def run(case: Case, optimizer: str, folder: Path) -> Path:
    """Check one case, or take what is there; the rows as JSON."""
    path = path_of(case, optimizer, folder)
    shape = {k: v for k, v in case._asdict().items() if k not in ("name", "note")}
    identity = json.loads(json.dumps({**shape, "optimizer": optimizer, "steps": STEPS, "seeds": SEEDS[optimizer]}))
    if path.exists() and json.loads(path.read_text())["case"] == identity:
        return path
    import jax

    import depthmup as dm
    from configs import default
    from depthmup.settings import from_config
    from depthmup.sweep.store import write_atomically
    from depthmup.verbs import probe_at

    config = default.get_config(case.family)
    for key, value in case.options.items():
        config.model[key] = value
    config.check.batch_size = 8
    config.check.log2_learning_rates[optimizer] = float(case.log2_lr[optimizer == "adam"])
    rows = []
    for name in case.parameterizations:
        config.parameterization.name = name
        report = dm.coordinate_check(
            functools.partial(probe_at, from_config(config), optimizer),
            widths=case.widths,
            depths=case.depths,
            width=case.width,
            depth=case.depth,
            steps=STEPS,
            seeds=SEEDS[optimizer] if name.startswith("depth") else FEW,
            tolerance=TOLERANCE,
        )
        for s in report.slopes:
            row = {k: v for k, v in s._asdict().items() if k not in ("changes", "sizes")}
            rows.append({"parameterization": name, **row})
        print(
            f"{case.name}, {optimizer}, {name}: {verdict(rows, name, 'width')}; {verdict(rows, name, 'depth')}",
            flush=True,
        )
    jax.clear_caches()
    write_atomically(path, json.dumps({"case": identity, "rows": rows}, indent=1))
    return path


def of(rows: list[dict[str, Any]], name: str, axis: str, **wanted: Any) -> list[dict[str, Any]]:
    wanted |= {"parameterization": name, "axis": axis}
    return [r for r in rows if all(r[k] == v for k, v in wanted.items())]


def verdict(rows: list[dict[str, Any]], name: str, axis: str) -> str:
    """The judged slope farthest from 0."""
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


def page(cases: Sequence[Case], folder: Path) -> str:
    """docs/checks.md from the finished cases: a table for each."""
    lines = [HEADER.format(steps=STEPS[-1], sgd=SEEDS["sgd"], adam=SEEDS["adam"], few=FEW, tolerance=TOLERANCE)]
    for case in cases:
        options = "".join(f", {k}={v!r}" for k, v in case.options.items())
        rates = f"learning rates 2^{case.log2_lr[0]} (SGD), 2^{case.log2_lr[1]} (Adam)"
        shapes = f"widths {case.widths} at depth {case.depth}, depths {case.depths} at width {case.width}"
        lines += [f"## {case.name}", "", f"`{case.family}{options}`; {shapes}; {rates}."]
        lines += ["", case.note] if case.note else []
        for axis in ("width", "depth"):
            lines += ["", f"| {axis} | | features | logits | farthest | |", "|---|---|---|---|---|---|"]
            for optimizer in ("sgd", "adam"):
                rows = json.loads(path_of(case, optimizer, folder).read_text())["rows"]
                for name in case.parameterizations:
                    last = {"group": "all", "step": STEPS[-1]}
                    features, logits = (of(rows, name, axis, quantity=q, **last) for q in ("hidden", "logits"))
                    judged = of(rows, name, axis, judged=True)
                    worst = max(judged, key=distance)
                    ok = "**ok**" if all(r["ok"] for r in judged) else "not ok"
                    cells = (name, optimizer, cell(features[0]), cell(logits[0]), cell(worst, name=True), ok)
                    lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def distance(row: dict[str, Any]) -> float:
    """Of a slope from 0; NaN is farthest."""
    return abs(row["slope"]) if row["slope"] == row["slope"] else float("inf")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [c for c in CASES if not sys.argv[2:] or c.name in sys.argv[2:]]
    jobs = [(case, optimizer, folder) for case in chosen for optimizer in ("sgd", "adam")]
    with multiprocessing.get_context("spawn").Pool(min(2, os.cpu_count() or 1), maxtasksperchild=1) as pool:
        pool.starmap(run, jobs, chunksize=1)
    if all(path_of(case, optimizer, folder).exists() for case in CASES for optimizer in ("sgd", "adam")):
        PAGE.write_text(page(CASES, folder))
        print(f"table: {PAGE}")

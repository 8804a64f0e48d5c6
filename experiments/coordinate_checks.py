"""Coordinate checks of every family, in width and depth, SGD and Adam: `make checks` writes docs/checks.md.

    python experiments/coordinate_checks.py runs/checks [NAME ...]

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
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "checks.md"
TOLERANCE = 0.1
PLAIN = ("depth_mup", "sp")  # without branches depth_mup is mup
STEPS = (1, 4)
FEW = 3  # seeds for what is far from flat
RESIDUAL = ("depth_mup", "depth_ode", "mup", "sp")


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
    seeds: tuple[int, int]  # of SGD and Adam


# fmt: off
CASES = (
    Case("mlp", "mlp", {}, PLAIN, (64, 128, 256, 512), (4, 8, 16, 32), 256, 4, (-14, -14), (32, 12)),
    Case("residual_mlp", "residual_mlp", {}, RESIDUAL, (64, 128, 256, 512), (8, 16, 32, 64), 128, 4, (-14, -14), (32, 12)),
    Case("residual_mlp, layer norm and biases", "residual_mlp", {"norm": "layer", "use_bias": True}, RESIDUAL,
         (64, 128, 256, 512), (8, 16, 32, 64), 128, 4, (-14, -14), (32, 12)),
    Case("cnn", "cnn", {}, PLAIN, (32, 64, 128), (3, 4, 8, 16), 64, 3, (-11, -13), (32, 12)),
    Case("residual_cnn", "residual_cnn", {}, RESIDUAL, (32, 64, 128), (8, 12, 16, 32), 32, 4, (-11, -13), (32, 12)),
    Case("residual_cnn, batch norm", "residual_cnn", {"norm": "batch"}, RESIDUAL,
         (32, 64, 128), (8, 12, 16, 32), 32, 4, (-9, -12), (32, 12)),
    Case("simple_resnet", "simple_resnet", {}, RESIDUAL, (128, 256, 512), (8, 12, 16, 32), 256, 4, (-5, -10), (32, 12)),
    Case("simple_resnet, batch norm", "simple_resnet", {"norm": "batch"}, RESIDUAL,
         (128, 256, 512), (8, 12, 16, 32), 256, 4, (-5, -10), (32, 12)),
    Case("resnet, batch norm", "resnet", {}, RESIDUAL, (8, 16, 32), (3, 4, 6, 10), 16, 2, (-10, -12), (32, 12)),
    Case("resnet, layer norm", "resnet", {"norm": "layer"}, RESIDUAL,
         (8, 16, 32), (3, 4, 6, 10), 16, 2, (-10, -12), (32, 12)),
    Case("resnet, no norm", "resnet", {"norm": "none"}, RESIDUAL, (8, 16, 32), (3, 4, 6, 10), 16, 2, (-10, -12), (32, 12)),
    Case("vit, layer norm", "vit", {}, RESIDUAL, (64, 128, 256), (8, 12, 16, 32), 64, 4, (-12, -13), (32, 12)),
    Case("vit, no norm", "vit", {"norm": "none"}, RESIDUAL, (64, 128, 256), (8, 12, 16, 32), 64, 4, (-12, -13), (32, 12)),
)
# fmt: on


def run(case: Case, optimizer: str, folder: Path) -> Path:
    """Check one case, or take what is there; the rows as JSON."""
    path = folder / f"{case.name}, {optimizer}.json".replace(", ", "_").replace(" ", "_")
    identity = json.loads(json.dumps({**case._asdict(), "optimizer": optimizer}))
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
            seeds=case.seeds[optimizer == "adam"] if name.startswith("depth") else FEW,
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
    worst = max(judged, key=lambda r: abs(r["slope"]))
    ok = "ok" if all(r["ok"] for r in judged) else "NOT OK"
    interval = f"[{worst['low']:+.2f}, {worst['high']:+.2f}]"
    return f"{axis} {ok} {worst['slope']:+.2f} {interval} ({worst['group']}, step {worst['step']})"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [c for c in CASES if not sys.argv[2:] or c.name in sys.argv[2:]]
    jobs = [(case, optimizer, folder) for case in chosen for optimizer in ("sgd", "adam")]
    with multiprocessing.get_context("spawn").Pool(min(2, os.cpu_count() or 1), maxtasksperchild=1) as pool:
        pool.starmap(run, jobs, chunksize=1)

"""The tables and pictures of README.md and docs/ that come from sweeps, drawn again from committed rows; no training.

    python -m experiments.documents                                     draws all of them again
    python -m experiments.documents publish digits_transfer runs/digits_transfer
                                                                        commits the rows of a finished sweep

docs/results/NAME.parquet has the rows of a sweep, NAME_measured.parquet what was measured during training, NAME.json
its settings, the calibrations that its rules start from, and what it was computed with. A table stands in a document
between the lines <!-- NAME: TABLE --> and <!-- end -->.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas

from configs import digits, patches16_simple_resnet, patches16_vit
from depthmup.fit.table import ACCURACY
from depthmup.measure import MaximalUpdate
from depthmup.report import figures, page
from depthmup.report.calibration import FILE
from depthmup.report.curves import TransferCurve, judge
from depthmup.settings import Settings, column, from_config
from depthmup.sweep import load, measured
from depthmup.sweep.axes import parse
from depthmup.sweep.plan import identity
from depthmup.train.workdir import first_difference
from experiments import learning_rate_rules, planted_curves, verdict_redraws

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
DOCUMENTS = ("README.md", "docs/laws.md")
RATIO = 8  # of depths, in the tables of rules
BLOCK = re.compile(r"(<!-- (\w+): ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Published(NamedTuple):
    """A sweep whose rows are committed. changed: what differs from the config's values.

    pictures: {name of a picture of the report: its file under docs/images}.
    """

    config: Callable[[], Any]
    changed: Mapping[str, Any] = {}
    pictures: Mapping[str, str] = {}


def _pictures(prefix: str = "") -> dict[str, str]:
    return {name: f"{prefix}{name}.png" for name in ("loss_over_depth", "optimum_over_depth")}


PUBLISHED = {
    "digits_transfer": Published(digits.get_config, pictures=_pictures()),
    "digits_constant": Published(digits.get_config, {"schedule": "constant"}),
    "digits_measured": Published(
        digits.get_config,
        {
            "sweep.seeds": 2,
            "sweep.depths": (2, 4, 8),
            "sweep.widths": (),
            "sweep.optimizers": ("sgd",),
            "sweep.measure": ("updates", "sharpness", "kernels"),
        },
    ),
    "patches16_simple_resnet": Published(patches16_simple_resnet.get_config, pictures=_pictures("simple_resnet_")),
    "patches16_vit": Published(patches16_vit.get_config, pictures=_pictures("vit_")),
}


class Sweep(NamedTuple):
    """measured: as `depthmup.sweep.measured` returns it, with the number of a row instead of its key."""

    rows: pandas.DataFrame
    settings: Settings
    curves: list[TransferCurve]
    measured: pandas.DataFrame | None


def settings_of(name: str) -> Settings:
    config = PUBLISHED[name].config()
    config.update_from_flattened_dict(dict(PUBLISHED[name].changed))
    return from_config(config)


def read(name: str) -> Sweep:
    """The published sweep. Raises ValueError if its rows were computed with other settings than its config has."""
    settings, about = settings_of(name), json.loads((RESULTS / f"{name}.json").read_text())
    ours = json.loads(json.dumps(identity(settings)))
    if different := first_difference(about["settings"], ours):
        raise ValueError(f"docs/results/{name} was computed with other settings than its config has: {different}")
    rows = pandas.read_parquet(RESULTS / f"{name}.parquet")
    order = rows["parameterization"].map(settings.sweep.parameterizations.index)
    rows = rows.astype({"loss": float, settings.sweep.judge_by: float, ACCURACY: float}).iloc[
        order.argsort(kind="stable")
    ]
    calibrated = {key: MaximalUpdate(*np.array(found, np.float64)) for key, found in about["calibration"].items()}
    path = RESULTS / f"{name}_measured.parquet"
    measured = pandas.read_parquet(path) if settings.sweep.measure else None
    return Sweep(rows, settings, judge(rows, settings, calibrated), measured)


def publish(name: str, workdir: Path) -> None:
    """Write the rows of the finished sweep in `workdir` to docs/results."""
    settings, found = settings_of(name), load(workdir)
    about = json.loads((workdir / "settings.json").read_text())
    if different := first_difference(about, json.loads(json.dumps(identity(settings)))):
        raise ValueError(f"{workdir} is not the sweep {name}: {different}")
    measures = dict.fromkeys(("loss", settings.sweep.judge_by, ACCURACY))
    axes = [column(key) for key in parse(settings)]
    names = dict.fromkeys(("optimizer", "parameterization", "width", "depth", "learning_rate", *axes, "seed"))
    found = found.sort_values([*names], ignore_index=True)
    rows = found[[*names, *measures, "diverged"]].astype(dict.fromkeys(measures, "float32"))  # as they were computed
    RESULTS.mkdir(exist_ok=True)
    rows.to_parquet(RESULTS / f"{name}.parquet", compression="zstd", index=False)
    if settings.sweep.measure:
        table = measured(workdir)
        table = table.assign(row=table.pop("key").map(pandas.Series(found.index, found["key"])))
        table.astype({"value": "float32"}).to_parquet(
            RESULTS / f"{name}_measured.parquet", compression="zstd", index=False
        )
    calibration = json.loads((workdir / FILE).read_text()) if (workdir / FILE).exists() else {}
    content = {
        "settings": about,
        "computed with": json.loads((workdir / "environment.json").read_text()),
        "calibration": {key: _rounded(found) for key, found in calibration.items()},
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content) + "\n")


def _rounded(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_rounded(value) for value in tree]
    return float(f"{tree:.6g}") if isinstance(tree, float) else tree


def measured_table(sweep: Sweep) -> str:
    """Means over seeds at the start and at the end of training with learning rate 1/2; of kernels the last one."""
    assert sweep.measured is not None
    chosen = sweep.measured.join(sweep.rows[sweep.rows["learning_rate"] == 0.5], on="row", how="inner")
    lines = ["| depth | | sharpness, start | sharpness, end | movement of the last kernel |", "|---|---|---|---|---|"]
    for (depth, name), own in chosen.sort_values("depth", kind="stable").groupby(
        ["depth", "parameterization"], sort=False
    ):
        sharpness, kernel = (own[own["quantity"] == quantity] for quantity in ("sharpness", "kernels"))
        kernel = kernel[kernel["layer"] == kernel["layer"].max()]
        ends = [sharpness[sharpness["step"] == step]["value"].mean() for step in (0, chosen["step"].max())]
        cells = [*ends, kernel[kernel["step"] == chosen["step"].max()]["value"].mean()]
        words = ["diverges" if math.isnan(cell) else f"{cell:.1f}" for cell in cells]
        lines.append(f"| {depth} | {name} | " + " | ".join(words) + " |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[Sweep], str]] = {
    "verdicts": lambda sweep: _code(page.verdict_table(sweep.curves)),
    "rules": lambda sweep: _code(page.rule_table(sweep.curves)),
    "rules at 8 times the depth": lambda sweep: learning_rate_rules.table(
        page.summary(sweep.curves, sweep.settings), RATIO
    ),
    "measured": measured_table,
    "redraws": lambda sweep: _code(verdict_redraws.table(sweep.rows, sweep.settings)),
}


def _code(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


OTHERS: dict[str, Callable[[], str]] = {
    "planted_curves": lambda: planted_curves.summary(json.loads((RESULTS / "planted_curves.json").read_text()))
}


def rendered(text: str, sweeps: Mapping[str, Sweep]) -> str:
    """A document's text with its tables made again. Raises KeyError for a sweep or a table that is not known."""

    def made(block: re.Match[str]) -> str:
        head, name, table, end = block.groups()
        content = OTHERS[name]() if name in OTHERS else TABLES[table](sweeps[name])
        return f"{head}\n{content}\n\n{end}"

    return BLOCK.sub(made, text)


def main() -> None:
    if sys.argv[1:2] == ["publish"]:
        publish(sys.argv[2], Path(sys.argv[3]))
    sweeps = {name: read(name) for name in PUBLISHED if (RESULTS / f"{name}.parquet").exists()}
    for name, sweep in sweeps.items():
        along_depth = [c for c in sweep.curves if (c.axis, c.hyperparameter) == ("depth", "learning_rate")]
        drawn = {"loss_over_depth": figures.loss_curves(along_depth), "optimum_over_depth": figures.optima(along_depth)}
        for picture, file in PUBLISHED[name].pictures.items():
            figure = drawn[picture]
            assert figure
            (ROOT / "docs" / "images" / file).write_bytes(figures.png(figure))
    for document in DOCUMENTS:
        path = ROOT / document
        path.write_text(rendered(path.read_text(), sweeps))
        print(path)


if __name__ == "__main__":
    main()

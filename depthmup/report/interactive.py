"""What report.js draws with Plotly, and what it shows of a trial: plain data.

Plotly reads some HTML in the text of a plot, so no name that a user gave is there: report.js writes names as text.
"""

from __future__ import annotations

import base64
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np
import pandas
from markupsafe import Markup

from depthmup.fit.picture import Picture
from depthmup.report.learning_curves import LearningCurves
from depthmup.settings import OWN, column
from depthmup.trials.study import Study
from depthmup.trials.verdicts import TransferCurve

POINTS = 64  # most points of a learning curve
SCALE = 1024  # a learning curve is kept as 16-bit integers, round(SCALE * log2(loss)): to 0.03%
MISSING = -(2**15)  # stands where a learning curve has no point
DIGITS = 5  # that a plot can show
Json = dict[str, Any]


def scripts() -> Markup:
    """The content of a script element: Plotly, which its Python package carries, and report.js."""
    plotly = resources.files("plotly").joinpath("package_data/plotly.min.js").read_text()
    return Markup(f"{plotly}\n{resources.files('depthmup.report').joinpath('report.js').read_text()}")


def plots(pictures: Iterable[Picture]) -> dict[str, Json]:
    """{name: the picture as JSON}, with {kind: [(name that can be switched off, place of its color or None)]}."""
    result = {}
    for picture in pictures:
        lines = [line for panel in picture.panels for line in panel.lines]
        places = {line.name: line.place for line in sorted(lines, key=lambda line: line.place)}
        names = {"sweep": [line.sweep for line in lines]}
        names |= {kind: [panel.names[kind] for panel in picture.panels] for kind in picture.panels[0].names}
        switches = {kind: [(name, None) for name in dict.fromkeys(values)] for kind, values in names.items()}
        result[picture.name] = json_of(picture, DIGITS) | {
            "switches": {picture.lines: list(places.items()), **switches}
        }
    return result


def clicked_trials(curves: Sequence[TransferCurve], study: Study, learning: LearningCurves, program: str) -> Json:
    """What a click on a point shows of its trials: settings, loss, learning curve, and the command to run one alone.

    program: what starts the command, such as "python main.py". The entry "keys" has the trials' keys, in the order of
    all other lists.
    """
    rows = pandas.concat([c.trials for c in curves]).drop_duplicates("key")
    swept = [key for key in (*OWN, *study.identity["axes"]) if column(key) in rows]
    flags = study.command(set(swept))
    steps, losses = learning.thinned(list(rows["key"]), POINTS)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.round(SCALE * np.log2(losses))
    known = np.isfinite(log)
    packed = np.where(known, np.clip(log, MISSING + 1, -MISSING - 1), MISSING).astype("<i2")
    return {
        "keys": list(rows["key"]),
        "command": f"{program} train {shlex.join(flags)}" if flags else "",
        "settings": {key: _coded(rows[column(key)], key, study) for key in dict.fromkeys(swept)},
        "loss": json_of(rows["loss"].astype(float).tolist(), 6),
        "diverged": [bool(diverged) for diverged in rows["diverged"]],
        "steps": steps.tolist(),
        "curves": base64.b64encode(packed.tobytes()).decode() if known.any() else "",
        "points": POINTS,
        "scale": SCALE,
        "missing": MISSING,
    }


def json_of(tree: Any, digits: int | None = None) -> Any:
    """As JSON has it: no NaN and no infinity, which are null; named tuples as objects. digits: of floats; None: all."""
    if hasattr(tree, "_asdict"):
        tree = tree._asdict()
    if isinstance(tree, np.ndarray | np.generic):
        tree = tree.tolist()
    if isinstance(tree, Mapping):
        return {key: json_of(value, digits) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [json_of(value, digits) for value in tree]
    if not isinstance(tree, float):
        return tree
    if not math.isfinite(tree):
        return None
    return float(f"{tree:.{digits}g}") if digits else tree


def _coded(values: pandas.Series, key: str, study: Study) -> Json:
    """A setting of all trials: its distinct values and their flags, and the number of each trial's value."""
    codes, distinct = pandas.factorize(values, use_na_sentinel=False)
    distinct = [None if value is None or value != value else json_of(value) for value in distinct]  # NaN: None
    flags = [shlex.join(study.flag(key, value)) for value in distinct]
    return {"values": [str(value) for value in distinct], "flags": flags, "of": codes.tolist()}

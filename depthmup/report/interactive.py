"""The plots of a report that can be hovered, zoomed and clicked: plain data, which report.js draws with Plotly.

Plotly reads some HTML in the text of a plot, so no name that a user gave is there: report.js writes names as text.
"""

from __future__ import annotations

import base64
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import matplotlib
import numpy as np
import pandas
from markupsafe import Markup
from matplotlib.colors import to_hex

from depthmup.report.curves import TransferCurve
from depthmup.report.figures import LOSSES, VERDICT_COLORS
from depthmup.report.learning_curves import LearningCurves
from depthmup.settings import OWN, column
from depthmup.trials.study import Study

POINTS = 64  # most points of a learning curve
SCALE = 1024  # a learning curve is kept as 16-bit integers, round(SCALE * log2(loss)): to 0.03%
MISSING = -(2**15)  # stands where a learning curve has no point
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
Json = dict[str, Any]


def scripts() -> Markup:
    """The content of a script element: Plotly, which its Python package carries, and report.js."""
    plotly = resources.files("plotly").joinpath("package_data/plotly.min.js").read_text()
    return Markup(f"{plotly}\n{resources.files('depthmup.report').joinpath('report.js').read_text()}")


def plots(
    curves: Sequence[TransferCurve], trials: Sequence[str] = (), sweeps: Sequence[str] | None = None
) -> dict[str, Json]:
    """{name: plot} of the score against the hyperparameter and of the optimum against the size; named as the PNGs are.

    A plot has panels. A panel has the names of its curve and the traces of Plotly. `meta` of a trace says what it
    shows, so that report.js can switch it off.

    Args:
      trials: keys of trials; a point names its trials by their numbers in this list.
      sweeps: if the curves are those of several sweeps, the letter of each curve's sweep.
    """
    labelled = list(zip(sweeps or [""] * len(curves), curves, strict=True))
    number = {key: i for i, key in enumerate(trials)}
    result: dict[str, Json] = {}
    for axis, key in dict.fromkeys((c.axis, c.hyperparameter) for c in curves):
        own = [(sweep, c) for sweep, c in labelled if (c.axis, c.hyperparameter) == (axis, key)]
        suffix = "" if key == "learning_rate" else f"_{key.replace(' ', '')}"
        result[f"loss_over_{axis}{suffix}"] = _losses(own, number)
        result[f"optimum_over_{axis}{suffix}"] = _optima(own)
    return result


def trials(curves: Sequence[TransferCurve], study: Study, learning: LearningCurves, program: str) -> Json:
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
        "loss": [float(f"{loss:.6g}") if math.isfinite(loss) else None for loss in rows["loss"].astype(float)],
        "diverged": [bool(diverged) for diverged in rows["diverged"]],
        "steps": [int(step) for step in steps],
        "curves": base64.b64encode(packed.tobytes()).decode() if known.any() else "",
        "points": POINTS,
        "scale": SCALE,
        "missing": MISSING,
    }


def _losses(own: Sequence[tuple[str, TransferCurve]], number: Mapping[str, int]) -> Json:
    """A panel for each parameterization, optimizer and variant; in it a line for each size and sweep."""
    sizes, letters = _sizes(own), list(dict.fromkeys(sweep for sweep, _ in own))
    colors = [to_hex(color) for color in matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(sizes)))]
    panels: dict[tuple[str, ...], Json] = {}
    for sweep, c in own:
        panel = panels.setdefault((c.parameterization, c.optimizer, c.variant), _panel(c))
        panel["says"].append([sweep, f"{c.result.verdict}: {c.result.reason}", _color_of(c)])
        panel["shapes"] += (
            []
            if math.isinf(c.chance)
            else [
                {
                    "type": "line",
                    "xref": "paper",
                    "x0": 0,
                    "x1": 1,
                    "y0": c.chance,
                    "y1": c.chance,
                    "line": {"color": "gray", "width": 1, "dash": "dot"},
                }
            ]
        )
        for size in c.result.values:
            style = {"color": colors[sizes.index(size)], "dash": DASHES[letters.index(sweep) % len(DASHES)]}
            panel["traces"] += _of_size(c, size, sweep, style, number)
    for panel in panels.values():  # optimizers have grids of their own
        beside = [p for p in panels.values() if p["names"]["optimizer"] == panel["names"]["optimizer"]]
        panel["x"] = {"range": _range(t["x"] for p in beside for t in p["traces"])}
    first = own[0][1]
    name, measure = first.hyperparameter.replace("_", " "), first.measure.replace("_", " ")
    base = " at the base shape" if first.hyperparameter == "learning_rate" else ""
    score = f"1 - {measure}" if "accuracy" in measure else LOSSES.get(first.measure, measure)
    return {
        "panels": list(panels.values()),
        "x": {"title": f"log2 {name}{base}"},
        "y": {
            "title": score,
            "type": "log",
            "range": _range(np.log10(t["y"]) for p in panels.values() for t in p["traces"]),
        },
        "switches": {
            "size": [[f"{size:g}", color] for size, color in zip(sizes, colors, strict=True)],
            "sweep": [[letter, ""] for letter in letters],
        },
        "title": first.axis,
        "seeds": True,
    }


def _of_size(
    c: TransferCurve, size: float, sweep: str, style: Mapping[str, str], number: Mapping[str, int]
) -> Iterator[Json]:
    """The traces of one size of a curve: the mean over seeds, each seed, the optimum."""
    i = c.result.values.index(size)
    values, diverged, found = c.result.learning_rates[i], c.result.diverged[i], c.result.optima[i]
    log = c.result.log_losses(i)
    mean, trained = np.nanmean(log, axis=1), ~np.isnan(log)
    keys = c.at(size).pivot(index=c.hyperparameter, columns="seed", values="key")
    keys = keys.reindex(columns=sorted(c.trials["seed"].unique())).to_numpy()
    points = [[number.get(key, -1) for key in row[of]] for row, of in zip(keys, trained, strict=True)]
    x, count, bad = np.log2(values), trained.sum(axis=1), diverged.sum(axis=1)
    name = c.hyperparameter.replace("_", " ")
    head = f"{sweep}{': ' * bool(sweep)}{c.axis} {size:g}"
    about = {"size": f"{size:g}", "sweep": sweep}
    yield {
        "mode": "lines+markers",
        "x": _short(x),
        "y": _short(np.exp(mean)),
        "customdata": list(zip(_short(values), count.tolist(), bad.tolist(), strict=True)),
        "trials": points,
        "hovertemplate": f"{head}<br>{name} %{{customdata[0]:.4g}} = 2^%{{x:.2f}}<br>mean loss %{{y:.4g}}<br>"
        "seeds: %{customdata[1]}, diverged: %{customdata[2]}<extra></extra>",
        "line": {**style, "width": 1.5},
        "marker": {"color": style["color"], "size": 5},
        "meta": {**about, "kind": "mean"},
    }
    yield {
        "mode": "markers",
        "x": _short(np.repeat(x, count)),
        "y": _short(np.exp(log[trained])),
        "customdata": diverged[trained].tolist(),
        "trials": [[trial] for keys in points for trial in keys],
        "hovertemplate": f"{head}, one seed<br>{name} 2^%{{x:.2f}}<br>loss %{{y:.4g}}<br>diverged: %{{customdata}}"
        "<extra></extra>",
        "marker": {"color": style["color"], "size": 4, "opacity": 0.5},
        "visible": False,
        "meta": {**about, "kind": "seeds"},
    }
    if found.learning_rate is not None:
        best = np.log2(found.learning_rate)
        yield {
            "mode": "markers",
            "x": _short([best]),
            "y": _short(np.exp([np.interp(best, x, mean)])),
            "hovertemplate": f"{head}<br>best {name}: 2^%{{x:.2f}}<extra></extra>",
            "marker": {"color": style["color"], "size": 12, "symbol": "star", "line": {"color": "black", "width": 1}},
            "meta": {**about, "kind": "optimum"},
        }


def _optima(own: Sequence[tuple[str, TransferCurve]]) -> Json:
    """A panel for each optimizer and variant; in it the optima of each parameterization and sweep, with intervals."""
    names = list(dict.fromkeys(c.parameterization for _, c in own))
    letters, sizes, panels = list(dict.fromkeys(sweep for sweep, _ in own)), _sizes(own), dict[Any, Json]()
    colors = [to_hex(f"C{i}") for i in range(len(names))]
    for sweep, c in own:
        panel = panels.setdefault(
            (c.optimizer, c.variant), _panel(c) | {"names": {"optimizer": c.optimizer, "variant": c.variant}}
        )
        place, drift = names.index(c.parameterization), c.result.drift
        pairs = zip(c.result.values, c.result.optima, strict=True)
        found = [(size, o.learning_rate, o.low, o.high) for size, o in pairs if o.learning_rate]
        of_size, best, low, high = np.array(found, float).reshape(-1, 4).T
        words = (
            f"drift {drift.octaves_per_doubling:+.2f} [{drift.low:+.2f}, {drift.high:+.2f}]" if drift else "no drift"
        )
        panel["traces"].append(
            {
                "mode": "lines+markers",
                "x": _short(np.log2(of_size)),
                "y": _short(np.log2(best)),
                "customdata": of_size.tolist(),
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": _short(np.nan_to_num(np.log2(high / best))),
                    "arrayminus": _short(np.nan_to_num(np.log2(best / low))),
                    "thickness": 1,
                    "width": 3,
                },
                "hovertemplate": f"{sweep}{': ' * bool(sweep)}{c.axis} %{{customdata}}<br>best: 2^%{{y:.2f}}<br>{words}"
                "<extra></extra>",
                "line": {"color": colors[place], "width": 1, "dash": DASHES[letters.index(sweep) % len(DASHES)]},
                "marker": {"color": colors[place], "size": 7, "symbol": MARKERS[place % len(MARKERS)]},
                "meta": {"parameterization": c.parameterization, "sweep": sweep},
            }
        )
    first = own[0][1]
    return {
        "panels": list(panels.values()),
        "x": {
            "title": first.axis,
            "range": _range([np.log2(sizes)]),
            "tickvals": _short(np.log2(sizes)),
            "ticktext": [f"{size:g}" for size in sizes],
        },
        "y": {"title": f"log2 best {first.hyperparameter.replace('_', ' ')}"},
        "switches": {
            "parameterization": [list(pair) for pair in zip(names, colors, strict=True)],
            "sweep": [[letter, ""] for letter in letters],
        },
        "title": first.axis,
        "seeds": False,
    }


def _panel(c: TransferCurve) -> Json:
    """An empty panel. says: [letter of a sweep, verdict, its color] of each curve that is in it."""
    names = {"parameterization": c.parameterization, "optimizer": c.optimizer, "variant": c.variant}
    return {"names": names, "says": [], "traces": [], "shapes": [], "x": {}}


def _color_of(c: TransferCurve) -> str:
    return VERDICT_COLORS[c.result.verdict]


def _sizes(own: Sequence[tuple[str, TransferCurve]]) -> list[float]:
    return sorted({size for _, c in own for size in c.result.values})


def _coded(values: pandas.Series, key: str, study: Study) -> Json:
    """A setting of all trials: its distinct values and their flags, and the number of each trial's value."""
    codes, distinct = pandas.factorize(values, use_na_sentinel=False)
    found = [None if value is None or value != value else _plain(value) for value in distinct]  # NaN stands for None
    flags = [shlex.join(study.flag(key, value)) for value in found]
    return {"values": [str(value) for value in found], "flags": flags, "of": codes.tolist()}


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _range(values: Any) -> list[float]:
    """From the smallest to the largest of some lists of numbers, with a margin."""
    every = np.concatenate([np.asarray(own, float) for own in values])
    margin = 0.04 * (every.max() - every.min()) or 0.5
    return _short([every.min() - margin, every.max() + margin])


def _short(values: Any) -> list[float]:
    """Numbers with the digits that a plot can show."""
    return [float(f"{value:.5g}") for value in values]

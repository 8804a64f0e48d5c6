"""The picture of a coordinate check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from depthmup.colors import curve_color
from depthmup.measure.slope import NOT_OK, OK, UNDECIDED, Slope, overall
from depthmup.names import plain

STYLES = {OK: "-", UNDECIDED: ":", NOT_OK: "--"}


def plot_coordinates(title: str, slopes: Sequence[Slope], path: str | Path) -> None:
    """Draw RMS change against size: a row per number of steps, a column per axis, a line per group and quantity that
    is judged. A line is solid if its slope is ok, dotted if undecided, dashed if not ok."""
    judged = [s for s in slopes if s.judged]
    axes = list(dict.fromkeys(s.axis for s in judged))
    steps = list(dict.fromkeys(s.step for s in judged))
    names = list(dict.fromkeys((s.group, s.quantity) for s in judged))
    figure = Figure(figsize=(5.2 * len(axes) + 2.6, 3.4 * len(steps) + 0.6), layout="constrained")
    panels = figure.subplots(len(steps), len(axes), squeeze=False)
    for s in judged:
        panel = panels[steps.index(s.step)][axes.index(s.axis)]
        log = np.log2(np.maximum(s.changes, np.finfo(float).tiny))
        mean, spread = log.mean(axis=1), log.std(axis=1)
        color = curve_color(names.index((s.group, s.quantity)))
        style = STYLES[s.answer]
        panel.plot(s.sizes, mean, style, marker="o", ms=4, color=color, label=plain(f"{s.group} ({s.quantity})"))
        panel.fill_between(s.sizes, mean - spread, mean + spread, color=color, alpha=0.15, lw=0)
        if s.answer != OK:
            end = (s.sizes[-1], mean[-1])
            panel.annotate(
                f"{s.plain.slope:+.2f}", end, xytext=(5, 0), textcoords="offset points", fontsize=7, color=color
            )
        panel.set_xscale("log", base=2)
        panel.set_xticks(s.sizes, [str(size) for size in s.sizes])
        panel.minorticks_off()
        panel.margins(x=0.1)
        panel.set_xlabel(s.axis)
        panel.set_title(f"after {s.step} step{'s' * (s.step > 1)}, along {s.axis}", fontsize=10)
        panel.set_ylabel("log2 RMS change since init")
    pairs = [pair for row in panels for p in row for pair in zip(*p.get_legend_handles_labels(), strict=True)]
    handles = {label: handle for handle, label in pairs}
    figure.legend(
        handles.values(), handles.keys(), loc="outside right upper", fontsize=8, title="trained (measured on)"
    )
    verdict = overall([s.answer for s in slopes])
    styles = "" if verdict == OK else " (not ok: dashed, undecided: dotted, with their slopes)"
    figure.suptitle(plain(f"{title}: {verdict}{styles}"), fontsize=11)
    figure.savefig(path, dpi=130)

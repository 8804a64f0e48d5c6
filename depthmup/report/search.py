"""How the search for a large run went: its answer and the cost of that against the seconds spent, what was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from depthmup.fit.marks import plain_log
from depthmup.fit.picture import STYLE, WIDTH
from depthmup.fit.thresholds import BOTH_SIDES, ONE_SIDE
from depthmup.names import percent
from depthmup.report.law import RED
from depthmup.report.tables import Cells
from depthmup.trials.choices import Answer
from depthmup.trials.study import Size


class Course(NamedTuple):
    """searched: the hyperparameter, in words.

    spent: (answers,), seconds before each answer. answers: of the law at that time, the last one at the end.
    tolerance: of the 97.5% cost. trained: {size: number of trainings}. next: what trains the target.
    """

    searched: str
    spent: Sequence[float]
    answers: Sequence[Answer]
    tolerance: float
    trained: Mapping[Size, int]
    next: str

    def figure(self) -> Figure:
        """The value with its interval, and both costs, against the seconds spent."""
        rate, low, high, cost, worst = np.array(self.answers).T
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
            rates, costs = figure.subplots(1, 2)
            rates.fill_between(self.spent, low, high, alpha=0.2, lw=0, color="C0")
            rates.plot(self.spent, rate, ".-", color="C0")
            rates.set_yscale("log")
            rates.set_title(f"{self.searched} of the target, {BOTH_SIDES}")
            plain_log(rates.yaxis)
            costs.plot(self.spent, worst, ".-", color=RED, label=ONE_SIDE)
            costs.plot(self.spent, cost, ".-", color="C0", label="on average")
            costs.axhline(self.tolerance, ls=":", lw=1, color="black", label="tolerance")
            costs.set_yscale("log")
            costs.set_title("what using it may cost")
            costs.legend(frameon=False, fontsize=8.5)
            costs.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
            figure.supxlabel("seconds spent on trainings", fontsize=9)
        return figure

    def table(self) -> list[Cells]:
        """A row for each size that was trained."""
        compute = {size: count * size.compute for size, count in self.trained.items()}
        shares = {size: percent(of_size / sum(compute.values())) for size, of_size in compute.items()}
        return [
            {name.replace("_", " "): str(value) for name, value in size._asdict().items()}
            | {
                "trainings": str(self.trained[size]),
                "share of the compute": percent(compute[size] / sum(compute.values())),
            }
            for size in sorted(shares, key=lambda size: (size.compute, size))
        ]

"""The result of a sweep from Python: verdicts in words, a picture, a report."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas
from markupsafe import escape
from matplotlib.figure import Figure

from depthmup.fit import MARGIN, Prediction, ScalingLaw
from depthmup.fit.picture import draw, png
from depthmup.fit.table import grouped_by
from depthmup.names import unknown
from depthmup.report import page, panels, words
from depthmup.report.curves import judge
from depthmup.report.large_run import sweep_law
from depthmup.report.tables import best_table
from depthmup.trials.study import Study
from depthmup.trials.table_study import TableStudy
from depthmup.trials.verdicts import TransferCurve


@dataclasses.dataclass(frozen=True, eq=False)
class SweepResult:
    """The result of a sweep. `print` shows it in words; a notebook shows the picture too.

    rows: a row for each trial. curves: of each parameterization and optimizer over each axis of sizes, with verdicts.
    workdir: None if nothing was stored. note: a line after the words, such as one about the gradient noise scale.
    law, prediction: of `m.tune` with a target: the law of the trainings, and what it says of the target; else None.
    hyperparameters: of a tune to a target, {name: value} of what was tuned, for `m.at(...).optimizer`; else empty.
    """

    rows: pandas.DataFrame
    curves: Sequence[TransferCurve]
    study: Study
    workdir: Path | None = None
    note: str = ""
    law: ScalingLaw | None = None
    prediction: Prediction | None = None
    hyperparameters: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def learning_rate(self) -> float | None:
        """The best learning rate of the first parameterization at the smallest size, a value for `m.optimizer`; None if
        it has none. The verdicts say whether it is right at larger sizes."""
        name = self.study.sweep.parameterizations[0]
        results = [c.result for c in self.curves if c.parameterization == name and c.of_rate]
        if results:
            tuned = [result.tuned or result.optimal_lr[0] for result in results]
            return next((rate for rate in tuned if rate is not None), None)
        trained = self.rows[(self.rows["parameterization"] == name) & ~self.rows["diverged"].astype(bool)]
        means = trained.groupby("learning_rate")[self.study.sweep.judge_by].mean()
        return None if means.empty else float(means.idxmin())

    def predict(
        self,
        *,
        optimizer: str | None = None,
        parameterization: str | None = None,
        variant: str | None = None,
        **sizes: float,
    ) -> Prediction:
        """What the trials say of a larger run: its learning rate, how sure that is, what using it may cost, its loss.

        It is that of one law over all sizes of the trials (`fit.scaling_law`), whose prior is that of the
        parameterization and the optimizer. The rate is a value at the base shape, as `learning_rate` is.

        Args:
          sizes: of the larger run: width, depth, batch_size, steps; of a table also parameters, tokens. Those with one
            value in the trials may be left out, and then stay.
          optimizer, parameterization: of the trials; None: the first of the sweep or the table.
          variant: as in `curves`; None: the one with the lowest loss at the base.

        Returns:
          A `Prediction`, with 95% intervals; print it.

        Raises ValueError for a size that is missing, unknown or below the trials', and for trials that allow no law.
        """
        return sweep_law(self.rows, self.study, optimizer, parameterization, variant).at(**sizes)

    def __str__(self) -> str:
        if self.prediction:
            return "\n".join(filter(None, (str(self.prediction), self.note)))
        conclusion = words.conclusion(self.curves, self.study) or best_table(self.rows, self.study)
        return "\n".join(filter(None, (conclusion, self.note)))

    def plot(self, path: str | Path | None = None, axis: str | None = None) -> Figure | None:
        """The loss against the learning rate, a line for each size.

        Args:
          path: of a PNG to write; None: none is written.
          axis: which sizes: "depth", "width", "batch_size", "steps", "compute"; None: the first that the sweep has.

        Returns:
          The figure, or None where no two sizes are compared.
        """
        axes = grouped_by([c for c in self.curves if c.of_rate], lambda c: c.axis)
        if not axes:
            return None
        chosen = axis or next(iter(axes))
        if chosen not in axes:
            raise unknown("axis of this sweep", chosen, axes)
        figure = draw(panels.losses(axes[chosen]))
        if path is not None:
            Path(path).write_bytes(png(figure))
        return figure

    def report(self, folder: str | Path | None = None) -> Path:
        """Write report.html, with all verdicts, pictures and tables.

        Args:
          folder: where to write it; None: the workdir, where it is already.

        Returns:
          Its path.
        """
        if folder is None and self.workdir is not None:
            return self.workdir / "report.html"
        if folder is None:
            raise ValueError("these trials have no workdir: say where to write the report, report(folder)")
        Path(folder).mkdir(parents=True, exist_ok=True)
        return page.write_report(self.curves, self.rows, self.study, Path(folder), "depthmup.sweep")

    def _repr_html_(self) -> str:
        figure = self.plot()
        picture = base64.b64encode(png(figure)).decode() if figure else ""
        image = f'<img alt="loss against learning rate" src="data:image/png;base64,{picture}">' if picture else ""
        return f"<pre>{escape(str(self))}</pre>{image}"


def of_table(
    table: pandas.DataFrame, measure: str = "loss", chance: float | None = None, margin: float | str = MARGIN
) -> SweepResult:
    """Verdicts, pictures and report of trials that were trained anywhere: a table with a row for each.

    Args:
      table: columns "depth" or "width" or both, "learning_rate", `measure`; and if known "batch_size", "steps",
        "epochs", "seed", "diverged", "optimizer", "parameterization". Depths are compared at the width (batch size,
        steps) that most depths have, and so on; batch sizes at fixed steps or fixed examples, whichever has more of
        them; where none can be compared alone, along "compute", the product of all (the width squared). Other
        columns of words tell variants apart.
      measure: the column that is minimized, or an accuracy, which is maximized. One that is below 0, such as a log
        density, is judged by its differences.
      chance: the value of `measure` of a model that has learned nothing, as it is minimized; None: not known.
      margin: what a value may cost that transfers, in octaves or percent of the loss (`fit.transfer`).

    Returns:
      A `SweepResult`; print it for the verdicts.

    The result's note says which rows were left out, and which columns tell variants apart. Raises ValueError for
    columns or values that cannot be judged (`fit.transfer`).
    """
    study = TableStudy.of(table, measure, chance, margin)
    return SweepResult(study.rows, judge(study.rows, study), study, note=study.note)

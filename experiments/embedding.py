"""Is muP's benefit under AdamW that of the embedding's learning rate alone?

    python -m experiments.embedding    # hours of two cores; goes on where it stopped, writes its rows
    python -m experiments.documents    # the table of docs/language.md, from the rows

So say Kalra and Barkeshli (arXiv 2605.21486, abstract): "the overwhelming benefit of muP relative to SP when training
with AdamW arises simply from maximizing the learning rate of the embedding layer", and times width it "dramatically
smooths out training while improving hyperparameter transfer".

The GPT of gpt_linen.py on bytes of NumPy's docstrings (language.py), widths 32 to 256 at depth 2, 300 steps of 16
sequences, weight decay 0 and .1, each at its own best learning rate:

- "sp", and "sp, embedding x m", whose two embeddings (tokens and positions) learn and decay m = width / 32 times as
  fast;
- "mup", and "mup, embedding / m", in which embeddings and hidden matrices have one rate, as in sp.

**Measures.** The loss at the best rate of each size, paired by seeds. The drift of the best rate over width, with its
verdict. Two figures of the paper by `fit.scaling_law(...).transfer()`: error of the fit and kappa. Four widths tell
neither kappa's interval nor the third figure, the loss at infinite width above mup's: with SciPy 1.17 and 1.18 the
lower end of a kappa was .04 and -.28, and such a loss -10% and -9%.

**Predictions**, written before the first training (docs/language.md has the first and third drift, of other seeds).
At the best rate of sp, which falls as 1/m, a table of Adam's powers of width has everything but the embeddings' and
vectors' rates, the readout's first weights and the attention's power as in mup. So the paper should be right:

- at width 256 "sp, embedding x m" has more than half of the gain of mup over sp, "mup, embedding / m" less than half;
- the best rate drifts by -.95 octaves a doubling under sp, by -1.2 [-1.4, -1.0] under "sp, embedding x m", by -.2 under
  mup, by -.1 [-.3, +.2] under "mup, embedding / m";
- decay .1 changes none of the signs.

**Rule of decision**, for each decay. The gain is the difference of the logs of both losses at width 256. The claim
agrees if the 95% interval of (loss of "sp, embedding x m" less the mean of sp's and mup's) lies below 0 and that of the
same for "mup, embedding / m" above 0; it disagrees if either lies on the other side; else it is undecided. Without a
gain of mup over sp, its interval above 0, nothing is decided. Six seeds; nothing is trained again after looking but by
more seeds for all.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import optax
import pandas

import depthmup as dm
from depthmup import fit
from depthmup.backend import prepare_cpu
from depthmup.files import write_atomically
from depthmup.sweep import judge
from depthmup.trials.verdicts import TransferCurve
from experiments import command_line, gpt_linen
from experiments.figures.figure import best_losses, cells
from experiments.language import BASE, CHANCE, batches, loss, setup
from experiments.output import UNDECIDED, Interval, decided, markdown, paired
from experiments.published import RESULTS, ROOT

RUNS, ROWS = ROOT / "runs" / "embedding", RESULTS / "embedding.parquet"
COLUMNS = ["optimizer", "parameterization", "weight_decay", "width", "learning_rate", "seed", "loss", "diverged"]
CASES = {  # parameterization and optimizer
    "sp": ("sp", "adamw"),
    "sp, embedding x m": ("sp", "other embedding"),
    "mup, embedding / m": ("mup", "other embedding"),
    "mup": ("mup", "adamw"),
}
FIGURES = ("error", "kappa")  # of `law.transfer`
CHANGED = ("sp, embedding x m", "mup, embedding / m")
EMBEDDINGS = ("tokens", "positions")
BATCH, LARGEST, SEEDS = 16, 256, (3, 6)  # three seeds of all first
SWEEP: dict[str, Any] = {
    "widths": (32, 64, 128, LARGEST), "depths": (), "learning_rates": 2.0 ** np.arange(-10, -2.9, 0.5),
    "adaptive": True, "steps": 300, "warmup": 30, "weight_decay": (0.0, 0.1), "chance": CHANCE,
}  # fmt: skip


def adamw(m: dm.Setup, **options: Any) -> optax.GradientTransformation:
    return m.optimizer("adamw", 1.0, **options)


def other_embedding(m: dm.Setup, **options: Any) -> optax.GradientTransformation:
    """AdamW in which sp's embeddings have mup's learning rate relative to the other weights, and mup's have sp's."""
    ratio = m.width / BASE[0]
    factor = ratio if m.parameterization.name == "sp" else 1 / ratio

    def scaled(updates: Any, _: Any) -> Any:
        return {
            name: jax.tree.map(lambda update: factor * update, of) if name in EMBEDDINGS else of
            for name, of in updates.items()
        }

    return optax.chain(adamw(m, **options), optax.stateless(scaled))


def train(seeds: int) -> pandas.DataFrame:
    """Train what is missing in runs/embedding: the rows."""
    rows = (
        setup("mup", gpt_linen.GPT, fan_in_init=True)
        .sweep(
            loss,
            functools.partial(batches, batch_size=BATCH),
            optimizer={"adamw": adamw, "other embedding": other_embedding},
            against=("sp",),
            seeds=seeds,
            workdir=RUNS,
            **SWEEP,
        )
        .rows
    )
    return rows.assign(loss=rows["last_loss"])[COLUMNS]


@functools.cache
def curves() -> dict[tuple[str, float], TransferCurve]:
    """{(case, weight decay): its curve over width}, of the committed rows."""
    rows = pandas.read_parquet(ROWS)
    result = {}
    for case, names in CASES.items():
        for decay in SWEEP["weight_decay"]:
            of = (rows[["parameterization", "optimizer", "weight_decay"]] == [*names, decay]).all(axis=1)
            (result[case, decay],) = judge(rows[of].drop(columns="weight_decay"), chance=CHANCE).curves
    return result


def gains(decay: float) -> dict[str, Interval]:
    """{case: percent by which its best loss at the largest width is below sp's}, paired by seeds."""
    best = _log_losses(decay)
    return {case: _percent(best["sp"] - losses) for case, losses in best.items() if case != "sp"}


def against_half(case: str, decay: float) -> Interval:
    """By how much of a percent a case's best loss at the largest width is above the middle of sp's and mup's."""
    best = _log_losses(decay)
    return _percent(best[case] - (best["sp"] + best["mup"]) / 2)


def _log_losses(decay: float) -> dict[str, np.ndarray]:
    """{case: (seeds,), logs of the losses at the best rate of the largest width}"""
    of_decay = {case: c for (case, of), c in curves().items() if of == decay}
    return {case: np.log(best_losses(c.result, c.result.values.index(LARGEST))) for case, c in of_decay.items()}


def _percent(logs: np.ndarray) -> Interval:
    return Interval(*(100 * end for end in paired(logs)))


def verdict(decay: float) -> str:
    """On the claim, by the rule of decision."""
    scaled, unscaled = (against_half(case, decay) for case in CHANGED)
    if gains(decay)["mup"].low <= 0:
        return UNDECIDED
    return decided(scaled.high < 0 and unscaled.low > 0, scaled.low > 0 or unscaled.high < 0)


def table() -> str:
    """What the rows say, as Markdown."""
    rows = []
    for (case, decay), c in curves().items():
        drift, cost, answer = cells(c)
        quality = fit.scaling_law(_columns(c), prior=None).transfer()
        losses = " ".join(f"{best_losses(c.result, i).mean():.3f}" for i in range(len(c.result.values)))
        gain = "-" if case == "sp" else gains(decay)[case].text("+.2f", "%")
        figures = f"{quality.error.value:.2f}", f"{quality.kappa['width'].value:+.2f}"
        verdict_of_rate = ", ".join(filter(None, (answer, cost)))
        rows.append((case, f"{decay:g}", losses, gain, drift, verdict_of_rate, *figures))
    columns = ("case", "decay", "best loss at each width", f"gain at {LARGEST}", "drift", "verdict", *FIGURES)
    lines = []
    for decay in SWEEP["weight_decay"]:
        halves = ", ".join(f"{case} {against_half(case, decay).text('+.2f', '%')}" for case in CHANGED)
        lines.append(f"Decay {decay:g}: {verdict(decay)}. Above the middle of sp and mup: {halves}.")
    return "\n\n".join((markdown(columns, rows), *lines))


def _columns(c: TransferCurve) -> dict[str, list[Any]]:
    return {name: c.trials[name].tolist() for name in ("width", "learning_rate", "loss", "seed", "diverged")}


def main() -> None:
    command_line.parser("experiments.embedding", __doc__).parse_args()
    prepare_cpu()
    for seeds in SEEDS:
        write_atomically(ROWS, train(seeds).to_parquet(index=False, compression="zstd"))
    print(table())


if __name__ == "__main__":
    main()

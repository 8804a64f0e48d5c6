"""Do the exponents of the small GPTs hold in published sweeps of language models? Committed rows; no training.

    python -m experiments.step_law              # computes the costs, a minute, and writes them beside the rows
    python -m experiments.step_law --slopes     # how fast the best loss falls with the steps, by shape and batch size
    python -m experiments.documents             # the tables of docs/published-runs.md

docs/results/step_law.parquet has the smoothed losses of step-law/steplaw, commit 32a8f4c (numbers only, one seed each):
all of data/dense_lr_bs_loss.csv, and of moe_lr_bs_loss.csv the curves with seven points or more and the smallest loss
inside, without their sizes. A batch size is a number of sequences of 2,048 tokens.

**Predictions** are exponents of the GPTs of width 32 (experiments/language.py, scaling.py), whose rows are older than
this comparison. It is no blind test: the estimator of optima was tested on these curves, and the groups (16,000 steps,
batch sizes) were chosen after looking.

**Rule of decision**: that of experiments/scaling.py. A prediction holds inside the measured 95% interval widened by .1
to both sides, else it does not; an interval wider than .5 decides nothing. The interval is Student's t over groups of
curves. A curve whose optimum is at an edge of its grid has none, and a group of fewer than three curves no exponent.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas

from depthmup import fit
from depthmup.files import write_atomically
from depthmup.rules.batch_rules import Exponents, RuleName
from depthmup.sweep import judge
from experiments import command_line, language, scaling
from experiments.output import Interval, markdown, paired
from experiments.published import RESULTS
from experiments.scaling import Answer

ROWS, COSTS = RESULTS / "step_law.parquet", RESULTS / "step_law_costs.json"
SHAPE = ["width", "depth"]
POINTS = 5  # of a curve that may have an optimum
LEAST = 3  # curves of a group that has an exponent
LONG = 16_000  # steps
SMALL_BATCH = 128  # sequences
BATCHES = {"32 to 64": (32, 64), "96 to 256": (96, 256), "352 or more": (352, math.inf)}  # sequences
RISING = 256  # sequences, up to which the small GPT's best rate rises with the batch size
COMPARED: tuple[RuleName, ...] = ("none", "nanochat", "completed_p", "token_horizon")
HALF_PERCENT = 0.005
SMALL = "small GPT"


class Row(NamedTuple):
    """A prediction and what the published runs have, in octaves. source: what the small GPT has that predicts it. over:
    the groups that the interval is over."""

    what: str
    predicted: Interval
    source: str
    measured: Interval
    over: str

    @property
    def answer(self) -> Answer:
        """The rule of decision."""
        _, low, high = self.measured
        if high - low > 0.5:
            return "undecided"
        return "holds" if low - 0.1 <= self.predicted.value <= high + 0.1 else "does not hold"


@functools.cache
def curves() -> pandas.DataFrame:
    """A row for each dense curve with an optimum: its sizes, `best` (log2 of the best rate), `loss` (there), and the
    arrays `rates` and `losses`."""
    rows, kept = pandas.read_parquet(ROWS), []
    for _, curve in rows[rows["model"] == "dense"].groupby("curve"):
        rates, losses = curve["learning_rate"].to_numpy(), curve["loss"].to_numpy(np.float64)
        optimum = fit.optimum(rates, losses) if len(rates) >= POINTS else None
        if optimum and optimum.learning_rate:
            sizes = curve.iloc[0][[*SHAPE, "tokens", "batch_size", "steps"]]
            best = {"best": math.log2(optimum.learning_rate), "loss": optimum.loss}
            kept.append({**sizes, **best, "rates": rates, "losses": losses})
    return pandas.DataFrame(kept)


def slopes(log2: pandas.Series, along: str, groups: Sequence[str]) -> pandas.DataFrame:
    """For each group with enough curves: n, and the slope of log2 of something, whose index is that of `curves`, over
    log2 of a column."""
    lines = []
    for key, group in curves().loc[log2.index].groupby(list(groups)):
        if len(group) >= LEAST:
            x = np.log2(group[along].to_numpy(np.float64))
            lines.append((*key, len(group), float(np.polyfit(x, log2[group.index], 1)[0])))
    return pandas.DataFrame(lines, columns=[*groups, "n", "slope"])


def steps_slopes() -> pandas.DataFrame:
    """s of loss ~ steps^-s, the best loss at a batch size, for each shape and batch size."""
    result = slopes(np.log2(curves()["loss"]), "steps", [*SHAPE, "batch_size"])
    return result.assign(slope=-result["slope"])


def worth(share: float, slope: float) -> float:
    """The share by which a training must be longer to lower its loss by `share`, for loss ~ length^-slope."""
    return float((1 + share) ** (1 / slope) - 1)


class SmallGPT(NamedTuple):
    """Drifts of the best learning rate of the GPTs of width 32, AdamW, in octaves a doubling, from committed rows."""

    width: Interval  # under "sp"
    depth: Interval
    batch: Interval  # at as many examples, up to RISING
    all_batches: Interval
    steps: Interval


@functools.cache
def small_gpt() -> SmallGPT:
    sp = {c.axis: _drift(c.result) for c in language.published() if (c.name, c.optimizer) == ("sp", "adamw")}
    rows = pandas.read_parquet(scaling.ROWS).rename(columns={"case": "optimizer"})
    rows = rows[rows["optimizer"] == "adamw"].assign(parameterization="no rule")
    every, rising = (
        {c.axis: _drift(c.result) for c in judge(table, chance=language.CHANCE).curves}
        for table in (rows, rows[rows["batch_size"] <= RISING])
    )
    return SmallGPT(sp["width"], sp["depth"], rising["batch_size"], every["batch_size"], every["steps"])


def _drift(result: fit.Transfer) -> Interval:
    assert result.drift is not None
    return Interval(*result.drift[:3])


def moved(shape: tuple[int, int], other: tuple[int, int], tokens: float, largest: float = math.inf) -> Row:
    """How far the best rate moves between two shapes, at the batch sizes up to `largest` that both have."""
    doublings = [math.log2(after / before) for before, after in zip(shape, other, strict=True)]
    drifts = small_gpt()[:2]
    value = sum(drift.value * n for drift, n in zip(drifts, doublings, strict=True))
    half = math.hypot(*((drift.high - drift.low) / 2 * n for drift, n in zip(drifts, doublings, strict=True)))
    table = curves()
    table = table[(table["tokens"] == tokens) & (table["batch_size"] <= largest)]
    before, after = (
        table[(table["width"] == width) & (table["depth"] == depth)].set_index("batch_size")["best"]
        for width, depth in (shape, other)
    )
    moves = (after - before).dropna().to_numpy()
    what = f"`sp`, {shape[0]} x {shape[1]} to {other[0]} x {other[1]}"
    if largest < math.inf:
        what += f", batches of {largest:g} or less"
    source = f"width {drifts[0].value:+.2f}, depth {drifts[1].value:+.2f} a doubling"
    return Row(what, Interval(value, value - half, value + half), source, paired(moves), f"{len(moves)} batch sizes")


def predictions() -> list[Row]:
    """Every prediction with what came out."""
    gpt, table = small_gpt(), curves()
    rows = [
        moved((960, 7), (2048, 16), 20e9),
        moved((960, 7), (2048, 16), 20e9, SMALL_BATCH),
        moved((1280, 10), (1280, 13), 50e9),
    ]
    smallest, *_, largest = sorted(scaling.SIZES["batch_size"])
    for what, predicted, up_to, part in (
        ("batch, as many tokens", gpt.all_batches, largest, table),
        (f"the same, {LONG:,} steps or more", gpt.batch, RISING, table[table["steps"] >= LONG]),
    ):
        of_groups = slopes(part["best"], "batch_size", [*SHAPE, "tokens"])["slope"].to_numpy()
        over = f"{len(of_groups)} shapes and lengths"
        rows.append(Row(what, predicted, f"batches of {smallest} to {up_to}", paired(of_groups), over))
    batch, shortest, longest = scaling.BASE["batch_size"], *(of(scaling.SIZES["steps"]) for of in (min, max))
    source = f"batches of {batch}, {shortest} to {longest:,} steps"
    for name, (low, high) in BATCHES.items():
        part = table[table["batch_size"].between(low, high)]
        of_groups = slopes(part["best"], "steps", [*SHAPE, "batch_size"])["slope"].to_numpy()
        over = f"{len(of_groups)} shapes and batch sizes"
        rows.append(Row(f"steps, batches of {name}", gpt.steps, source, paired(of_groups), over))
    return rows


class Pair(NamedTuple):
    """Two curves of one shape, as rows of `curves`; batch, tokens, steps: factors from the first to the second."""

    start: int
    end: int
    batch: float
    tokens: float
    steps: float


def pairs() -> dict[str, list[Pair]]:
    """{what the second training has: pairs}."""
    every, table = list[Pair](), curves()
    for _, of_shape in table.groupby(SHAPE):
        sizes = of_shape[["batch_size", "tokens", "steps"]].to_numpy(np.float64)
        for i, size in zip(of_shape.index, sizes, strict=True):
            factors = zip(of_shape.index, (sizes / size).tolist(), strict=True)
            every += [Pair(i, j, *of_pair) for j, of_pair in factors]
    result = {
        "more tokens, a larger batch": [pair for pair in every if pair.batch > 1 and pair.tokens > 1],
        "more steps, a larger batch": [pair for pair in every if pair.batch > 1 and pair.steps > 1],
    }
    longer = [pair for pair in every if pair.batch == 1 and pair.steps > 1]
    batch = table["batch_size"]
    for name, (low, high) in BATCHES.items():
        result[f"more steps, batches of {name}"] = [pair for pair in longer if low <= batch[pair.start] <= high]
    return result


def rules() -> dict[str, Exponents]:
    """Exponents of the learning rate: of the small GPT and of published rules; NaN in the batch size for a rule that is
    defined at one batch size alone."""
    gpt = small_gpt()
    batch, steps = (scaling.rules_of("adamw", axis) for axis in ("batch_size", "steps"))
    published = {f"`{name}`": Exponents(batch.get(name, math.nan), steps[name]) for name in COMPARED}
    return {SMALL: Exponents(gpt.batch.value, gpt.steps.value), **published}


def costs(of: Sequence[Pair], rule: Exponents) -> np.ndarray:
    """(pairs,), what the best rate of the first curve costs at the second, carried there by a rule: the share by which
    the loss is above the best one; infinity off the grid, NaN where the rule is not defined."""
    result = list[float]()
    for start, of_start in itertools.groupby(of, key=lambda pair: pair.start):
        sizes = [(start, 1.0)]
        sizes += [(pair.end, pair.batch**rule.batch * pair.tokens**rule.examples) for pair in of_start]  # 1^NaN is 1
        if any(math.isnan(factor) for _, factor in sizes):
            result += [math.nan] * (len(sizes) - 1)
        else:
            result += [math.inf if cost is None else cost for cost in costs_of_first(sizes)]
    return np.array(result)


def costs_of_first(sizes: Sequence[tuple[int, float]]) -> list[float | None]:
    """What the best rate of the first curve costs at the others, as shares; None off the grid. sizes: rows of `curves`,
    and what a rule multiplies the rate by."""
    table = curves()
    trials = [  # with the rates before the rule
        {"size": number, "learning_rate": rate / factor, "seed": 0, "loss": loss}
        for number, (i, factor) in enumerate(sizes, 1)
        for rate, loss in zip(table.at[i, "rates"], table.at[i, "losses"], strict=True)
    ]
    return [cost and cost.share for cost in fit.transfer(trials, "size").costs[1:]]


def costs_of_rules() -> dict[str, Any]:
    """What `COSTS` has. rules: for each set of pairs their number, and for each rule the median and the 90th percentile
    of its costs. octave below: what a rate an octave below the best costs on each curve whose grid reaches it."""
    result = {
        what: {"pairs": len(of), "costs": {name: quantiles(costs(of, rule)) for name, rule in rules().items()}}
        for what, of in pairs().items()
    }
    below = [costs_of_first([(i, 1.0), (i, 0.5)])[0] for i in curves().index]
    return {"rules": result, "octave below": [round(cost, 6) for cost in below if cost is not None]}


def quantiles(shares: np.ndarray) -> list[float] | None:
    """Median and 90th percentile; None where a share is NaN."""
    if np.isnan(shares).any():
        return None
    return [round(float(np.quantile(shares, level)), 6) for level in (0.5, 0.9)]


def margin(below: np.ndarray) -> str:
    """What half a percent of the loss is worth, in words. below: costs of a rate an octave below the best."""
    table = curves()
    best = table.loc[table.groupby([*SHAPE, "tokens"])["loss"].idxmin(), "loss"]
    lengths = {
        "tokens": -slopes(np.log2(best), "tokens", SHAPE)["slope"],
        "steps at one batch size": steps_slopes()["slope"],
    }
    values = [
        f"{100 * worth(HALF_PERCENT, s.max()):.0f} to {100 * worth(HALF_PERCENT, s.min()):.0f}% of the {name} "
        f"(loss ~ {name.split()[0]}^-s, s = {s.min():.3f} to {s.max():.3f})"
        for name, s in lengths.items()
    ]
    small = f"{100 * np.mean(below < HALF_PERCENT):.0f}% of {len(below)} curves"
    return (
        f"- **Half a percent of the loss** is worth {' and '.join(values)}.\n"
        f"- **A rate an octave below the best** costs {100 * np.median(below):.2f}% in the median, and less than half "
        f"a percent in {small}."
    )


def table_of_predictions() -> str:
    """The predictions of docs/published-runs.md."""
    rows = predictions()
    lines = [(r.what, r.source, r.predicted.text(), r.measured.text(), r.over, r.answer) for r in rows]
    return markdown(("octaves", SMALL, "predicted", "measured", "over", "the prediction"), lines)


def table_of_costs() -> str:
    """The costs of docs/published-runs.md."""
    numbers = json.loads(COSTS.read_text())
    exponents = rules()[SMALL]
    names = [
        name if name != SMALL else f"{name}: {exponents.batch:+.2f}, {exponents.examples:+.2f}" for name in rules()
    ]
    columns = ("the second training has", "pairs", *names)
    lines = [
        (what, str(of["pairs"]), *(_cell(of["costs"][name]) for name in rules()))
        for what, of in numbers["rules"].items()
    ]
    return f"{markdown(columns, lines)}\n\n{margin(np.array(numbers['octave below']))}"


def _cell(quantiles: list[float] | None) -> str:
    return " / ".join(f"{100 * share:.2f}" for share in quantiles) if quantiles else "-"


def main() -> None:
    parser = command_line.parser("experiments.step_law", __doc__)
    parser.add_argument("--slopes", action="store_true", help="print how fast the best loss falls with the steps")
    if parser.parse_args().slopes:
        lines = [
            (*(f"{size:g}" for size in sizes), f"{slope:.4f}", f"{100 * worth(0.01, slope):.0f}%")
            for *sizes, slope in steps_slopes().itertuples(index=False)
        ]
        print(markdown((*SHAPE, "batch size", "lengths", "s", "1% of the loss, of the steps"), lines))
        return
    write_atomically(COSTS, json.dumps(costs_of_rules()) + "\n")
    print(f"{table_of_predictions()}\n\n{table_of_costs()}")


if __name__ == "__main__":
    main()

"""How does the best learning rate go with the batch size and with the number of steps? A GPT and a residual CNN.

    python -m experiments.scaling             # trains what is missing, writes its rows: half an hour for a case
    python -m experiments.scaling adamw       # this case
    python -m experiments.scaling --noise     # the gradient noise scale of the base
    python -m experiments.documents           # the tables of docs/batch.md, from the rows

The GPT of gpt_linen.py (width 32, 2 blocks), on bytes of NumPy's docstrings, warm-up over a tenth of the steps.
Base: batches of 32 sequences, 512 steps. Along the batch size, 8 to 512, all trainings see as many sequences; along
steps, 64 to 2,048, the batch size stays. No hyperparameter but the learning rate follows: batch_rule is "none".
"sgd, images" is a SimpleResNet (width 64, 4 blocks) on photo patches of 16x16 pixels, at the same sizes. "adamw, decay"
is the GPT with four weight decays, which the step multiplies by the learning rate, at three sizes along each axis.

**Questions.** What are the exponents of the best learning rate in batch size (at fixed examples) and in steps (at a
fixed batch size)? Which rule's transferred value costs least?

**Predictions**, written before the first training.

- Batch size: the SDE limit says 1/2 for AdamW (if noise dominates) and 1 for SGD; steepest descent in any norm
  says 1/2 for Muon. Here b1 and b2 stay, and a loss of 5.5 nats falls to 2.4 within the training, so that noise does
  not dominate at first: we expect less, .2 to .5 for AdamW and Muon, .4 to 1 for SGD, and the slope falls beyond the
  critical batch, of the order of 100 sequences.
- Images: linear for SGD below the noise scale, so .4 to 1 from 8 to 32; along steps -.3 to 0.
- Decay: each example is seen once, so that decay regularizes little: at its best it lowers the loss by less than 1%
  against none, at every size. If its best value can be told, rate x decay x steps stays ("timescale") within a factor
  of 4, and the exponents of the rate are those without decay within .15.
- Steps: nanochat and "sde" say 0, HyperP -.32, Marin -.395 for Muon, Complete(d)P -.5. We expect -.1 to -.4 with a
  rate that falls to 0, and -.3 to -.5 with a constant one.

**Rule of decision.** The exponent is the drift of `fit.transfer`, in octaves a doubling, with its 95% interval. A rule
holds along an axis if its exponent is inside the interval widened by .1 to both sides, else it does not; an interval
wider than .5 decides nothing. The cost of a rule is the loss at its transferred rate, carried from the base to the
farthest sizes of the axis, over the best loss there, in percent, with the 95% interval of paired seeds; of rules that
hold, the one of the smallest largest cost is recommended. (Intervals of paired seeds lack the error of the base's rate;
costs are now those of `fit.transfer`, which have it.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.data import load
from depthmup.data.dataset import Split
from depthmup.fit import Transfer, transfer
from depthmup.models import SimpleResNet
from depthmup.rules.batch_rules import RULES
from depthmup.rules.optim import family_of
from depthmup.sweep import judge
from depthmup.trials.verdicts import TransferCurve
from experiments import command_line, gpt_linen
from experiments.figures.figure import IMAGES, loss_pictures, save
from experiments.language import CHANCE, batches, loss, setup
from experiments.output import Interval, markdown, percent
from experiments.published import RESULTS, ROOT, replace

RUNS = ROOT / "runs" / "scaling"
ROWS = RESULTS / "scaling.parquet"
COLUMNS = ["case", "batch_size", "steps", "learning_rate", "seed", "loss", "diverged"]
SIZES = {"batch_size": (32, 8, 16, 64, 128, 256, 512), "steps": (512, 64, 128, 256, 1024, 2048)}
BASE = {axis: sizes[0] for axis, sizes in SIZES.items()}
DECAYS = (0.0, 1 / 32, 1 / 8, 1 / 2)
KEPT = 1 / 8  # the best decay of the base


class Problem(NamedTuple):
    """A model with its base, its batches (step, batch_size) and what guessing has as loss."""

    setup: Callable[[], dm.Setup]
    batches: Callable[[jax.Array, int], tuple[jax.Array, jax.Array]]
    chance: float


def gpt() -> dm.Setup:
    return setup("depth_mup", gpt_linen.GPT, fan_in_init=False)


def resnet() -> dm.Setup:
    size = (64, 4)
    return dm.setup("depth_mup", SimpleResNet, jnp.zeros((1, 16, 16, 3)), width=size[0], depth=size[1], base=size)


def patches(step: jax.Array, batch_size: int) -> tuple[jax.Array, jax.Array]:
    """Patches of ten photographs, each with the number of its photograph."""
    data = load("patches", image_size=16)
    assert isinstance(data.train, Split)
    assert data.mean is not None
    assert data.std is not None
    key = jax.random.fold_in(jax.random.key(1), step)
    chosen = jax.random.randint(key, (batch_size,), 0, len(data.train.inputs))
    images = (jnp.asarray(data.train.inputs)[chosen].astype(jnp.float32) - data.mean) / data.std
    return images.astype(jnp.float32), jnp.asarray(data.train.labels)[chosen]


TEXT, PHOTOS = Problem(gpt, batches, CHANCE), Problem(resnet, patches, math.log(10))
# Arguments of `m.sweep`; learning_rates: the ends of a grid, as log2.
CASES: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "schedule": "linear", "b2": 0.95, "learning_rates": (-10, -4)},
    "muon": {"optimizer": "muon", "schedule": "linear", "b2": 0.95, "learning_rates": (-9, -3)},
    "sgd": {"optimizer": "momentum", "schedule": "linear", "learning_rates": (-6, 0)},
    "adamw, constant": {"optimizer": "adamw", "schedule": "constant", "b2": 0.95, "learning_rates": (-10, -4)},
    "sgd, images": {"optimizer": "sgd", "schedule": "linear", "learning_rates": (-7, -1)},
    "adamw, decay": {
        "optimizer": "adamw", "schedule": "linear", "b2": 0.95, "learning_rates": (-10, -4), "weight_decay": DECAYS,
        "batch_size": (32, 8, 128), "steps": (512, 128, 2048),
    },
}  # fmt: skip
PROBLEMS = {"sgd, images": PHOTOS}  # TEXT by default
Answer = Literal["holds", "undecided", "does not hold"]
ANSWERS: tuple[Answer, ...] = get_args(Answer)


def train(case: str) -> pandas.DataFrame:
    """Train what is missing of a case in its workdir: rows with the columns `COLUMNS`."""
    problem = PROBLEMS.get(case, TEXT)
    low, high = CASES[case]["learning_rates"]
    arguments = {
        **SIZES, **CASES[case], "learning_rates": 2.0 ** np.arange(low, high + 0.1, 0.5), "widths": (), "depths": (),
        "seeds": 3, "adaptive": True, "warmup": BASE["steps"] // 10, "chance": problem.chance,
        "workdir": RUNS / case.replace(", ", "_"),
    }  # fmt: skip
    rows = problem.setup().sweep(loss, problem.batches, **arguments).rows
    decay = rows["weight_decay"].map(" {:g}".format) if "weight_decay" in CASES[case] else ""
    return rows.assign(case=case + decay, loss=rows["last_loss"])[COLUMNS]


def case_of(name: str) -> str:
    """The case of a row: with several decays they are part of the row's name."""
    return max((case for case in CASES if name.startswith(case)), key=len)


def curves(decay: bool = False) -> list[TransferCurve]:
    """The curves of the committed rows along both axes; the optimizer is the case. decay: of cases with decays."""
    rows = pandas.read_parquet(ROWS).rename(columns={"case": "optimizer"})
    with_decay = rows["optimizer"].map(case_of).map(lambda case: "weight_decay" in CASES[case])
    rows = rows[with_decay == decay].assign(parameterization="no rule")
    return list(judge(rows, chance=CHANCE).curves) if len(rows) else []


def draw() -> None:
    """Write the pictures of docs/batch.md: the loss against the learning rate, a line for each size."""
    committed = curves()
    save(IMAGES, loss_pictures({f"scaling_{axis}": [c for c in committed if c.axis == axis] for axis in SIZES}))


def rules_of(optimizer: str, axis: str) -> dict[str, float]:
    """{rule: its exponent of the learning rate along an axis}, of the rules for an optimizer that are defined there."""
    fixed, i = ("batch size", 0) if axis == "batch_size" else ("examples", 1)
    rows = [(name, row) for name, of_name in RULES.items() for row in of_name]
    return {name: row.lr[i] for name, row in rows if family_of(optimizer) in row.families and row.fixed != fixed}


def table() -> str:
    """For each case and axis the exponent of the rows, and the rules with the answer and the largest cost of each."""
    lines = []
    for c in curves():
        rules = rules_of(CASES[case_of(c.optimizer)]["optimizer"], c.axis)
        cells: dict[Answer, list[str]] = {answer: [] for answer in ANSWERS}
        for exponent in sorted(set(rules.values())):
            names = ", ".join(f"`{name}`" for name, of_rule in rules.items() if of_rule == exponent)
            cost = largest_cost(c, exponent)
            cells[held(c.result, exponent)].append(f"{exponent:+.2f} ({names}): {cost}")
        texts = ("; ".join(of_answer) or "-" for of_answer in cells.values())
        lines.append((c.optimizer, c.axis.replace("_", " "), exponent_of(c), *texts))
    return markdown(("case", "along", "exponent", *(f"the exponent {answer}" for answer in ANSWERS)), lines)


def exponent_of(c: TransferCurve) -> str:
    """The exponent of the best learning rate with its interval, in words."""
    return Interval(*c.result.drift[:3]).text() if c.result.drift else "none"


def largest_cost(c: TransferCurve, exponent: float) -> str:
    """The largest cost of the base's best rate times (size / base)^exponent, at the smallest and the two largest sizes,
    in words."""
    base, sizes = BASE[c.axis], sorted(c.trials[c.axis].unique())
    order = {size: number for number, size in enumerate([base, *(size for size in sizes if size != base)], 1)}
    factor = (c.trials[c.axis] / base) ** exponent
    carried = c.trials.assign(order=c.trials[c.axis].map(order), learning_rate=c.trials["learning_rate"] / factor)
    costs = transfer(carried, "order", c.chance).costs
    farthest = [costs[order[size] - 1] for size in (sizes[0], *sizes[-2:])]
    known = [cost for cost in farthest if cost]
    return str(max(known)) if len(known) == len(farthest) else "beyond the rates trained"


def held(result: Transfer, exponent: float) -> Answer:
    """The rule of decision."""
    drift = result.drift
    if drift is None or drift.high - drift.low > 0.5:
        return "undecided"
    return "holds" if drift.low - 0.1 <= exponent <= drift.high + 0.1 else "does not hold"


def decays() -> str:
    """The best decay at each size, with the best learning rate beside it, what it wins against none, and what the
    base's costs; then the exponents of the learning rate at each decay."""
    rows = pandas.read_parquet(ROWS)
    rows = rows[rows["case"].map(case_of) == "adamw, decay"]
    rows = rows[~rows["diverged"]].assign(decay=rows["case"].str.split().str[-1].astype(float))
    lines = []
    for (batch, steps), of_size in rows.groupby(["batch_size", "steps"]):
        at = of_size.pivot_table(index=["decay", "learning_rate"], columns="seed", values="loss").dropna()
        best = {decay: of_decay.loc[of_decay.mean(axis=1).idxmin()] for decay, of_decay in at.groupby(level="decay")}
        decay = min(best, key=lambda d: best[d].mean())
        rate = best[decay].name[1]
        won = percent((best[decay] / best[0.0]).to_numpy()).text("+.1f", "%") if decay else "-"
        sizes = (f"{batch:g}", f"{steps:g}", f"{decay:g}", f"{math.log2(rate):g}")
        kept = percent((best[KEPT] / best[decay]).to_numpy()).text("+.1f", "%") if decay != KEPT else "-"
        lines.append((*sizes, f"{rate * decay * steps:.2f}", won, kept))
    columns = ("batch size", "steps", "best decay", "log2 of the rate", "rate x decay x steps", "loss against no decay",
               f"decay {KEPT:g} against it")  # fmt: skip
    exponents: dict[str, dict[str, str]] = {}
    for c in curves(decay=True):
        exponents.setdefault(c.optimizer.split()[-1], {})[c.axis] = exponent_of(c)
    by_decay = [(decay, *(of_axis.get(axis, "-") for axis in SIZES)) for decay, of_axis in exponents.items()]
    of_rate = markdown(("decay", "exponent of the rate in batch size", "in steps"), by_decay)
    return f"{markdown(columns, lines)}\n\n{of_rate}"


def noise() -> str:
    """The gradient noise scale while the base is trained at its best learning rate, by 64 parts of 16 sequences."""
    m = gpt()
    tx = m.optimizer("adamw", optax.linear_schedule(2**-5.75, 0.0, BASE["steps"]), b2=0.95)
    params = m.init(jax.random.key(0))
    state = tx.init(params)

    @jax.jit
    def step(params: Any, state: Any, number: jax.Array) -> Any:
        tokens, targets = batches(number, BASE["batch_size"])
        grads = jax.grad(lambda params: loss(m.apply(params, tokens), targets))(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    lines = []
    for number in range(BASE["steps"] + 1):
        if number in (0, 32, 64, 128, 256, 512):
            scale = m.noise_scale(loss, batches(jnp.int32(10_000), 1024), params, part=16)
            lines.append((str(number), str(scale)))
        params, state = step(params, state, jnp.int32(number))
    return markdown(("step", "noise scale [95%]"), lines)


def main() -> None:
    parser = command_line.parser("experiments.scaling", __doc__, "case", CASES)
    parser.add_argument("--noise", action="store_true", help="print the gradient noise scale of the base's training")
    arguments = parser.parse_args()
    prepare_cpu()
    if arguments.noise:
        print(noise())
        return
    for case in arguments.cases:
        replace(ROWS, train(case), ["case"])
    print(table())


if __name__ == "__main__":
    main()

"""Coordinate checks of the learning-rate rules of Lion, Adafactor, Muon and its kin (docs/rules.md section 0).

    python -m experiments.optimizer_families            (a Markdown table; an hour on one of two busy cores)
    python -m experiments.optimizer_families matrices   (the table of optimizers that act on matrices)

Residual networks h <- h + L^-alpha f(h), where f is W_1 tanh(h) or W_2 tanh(W_1 tanh(h)), take 10 steps in which one
group of weights trains, or all. Shown are the slopes of the log2 RMS change of h^L (of the logits, where the readout
trains alone) over log2 width and over log2 depth, with their answers: within +-.1 is ok. All weights of a network have
the same kind of update: Muon trains the read-in and the readout too. The last rows show wrong rules. In the second
table the rule "wrap" is what `dm.wrap` finds, and sizes are smaller, since eigenvectors are slow: widths 64..256 at
depth 4, depths 4..32 at width 64, 5 steps.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.measure import Probe
from depthmup.rules.optim import scale_by_tree
from depthmup.rules.parameterization import FamilyName, Name
from depthmup.rules.specs import PyTree, is_spec
from depthmup.rules.wrap_optimizer import Rules, rules_of, wrapped
from experiments import matrix_updates

INPUTS, OUTPUTS, EXAMPLES = 32, 4, 8
LEARNING_RATE = 2.0**-9
UPDATES: Mapping[str, optax.GradientTransformation] = {
    "lion": optax.scale_by_lion(),
    "muon": matrix_updates.muon(),
    "adafactor": optax.chain(
        optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0), optax.scale_by_param_block_rms()
    ),
    "adafactor, no parameter scale": optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0)),
    "shampoo 1/4": matrix_updates.shampoo(0.25),
    "shampoo 1/2": optax.chain(matrix_updates.shampoo(0.5), optax.scale(2.0**-6)),
    "soap": matrix_updates.soap(),
    "soap, inputs only": matrix_updates.soap(sides=(True, False)),
    "muon by RMS": optax.chain(
        matrix_updates.muon(), matrix_updates.of_each_leaf(lambda u: 0.2 * max(u.shape[-2:]) ** 0.5 * u)
    ),
    "scion": matrix_updates.scion(
        lambda tree: {name: {"in": "columns", "out": "sign"}.get(name, "spectral") for name in tree}
    ),
    "AdamH": optax.chain(optax.scale_by_adam(), matrix_updates.times_weight_norm()),
    "MuonH": optax.chain(matrix_updates.muon(), matrix_updates.times_weight_norm()),
}


class Case(NamedTuple):
    update: str
    rule: FamilyName | Literal["wrap"]
    parameterization: Name = "depth_mup"
    matrices: int = 1  # of a branch
    examples: int = EXAMPLES


class Sizes(NamedTuple):
    """Widths at depth 4, depths at width 64, steps."""

    widths: tuple[int, ...] = (64, 128, 256, 512)
    depths: tuple[int, ...] = (4, 8, 16, 32, 64)
    steps: int = 10


RULES: dict[str, FamilyName] = {"lion": "adam", "muon": "muon", "adafactor": "adafactor"}
DEPTH_RULES: tuple[tuple[Name, int], ...] = (("depth_mup", 1), ("depth_mup", 2), ("depth_ode", 2))
CASES = (
    *(Case(update, RULES[update], name, matrices) for update in RULES for name, matrices in DEPTH_RULES),
    Case("adafactor, no parameter scale", "adam"),
    Case("muon", "adam"),
    Case("adafactor", "adam"),
    Case("muon", "muon", "sp"),
    Case("adafactor", "adafactor", "sp"),
)
MATRICES = (
    *(
        Case(update, "wrap", name, 2)
        for update in ("shampoo 1/4", "shampoo 1/2", "soap", "scion", "AdamH")
        for name, _ in DEPTH_RULES[1:]
    ),
    Case("soap, inputs only", "wrap"),
    Case("muon by RMS", "wrap"),
    Case("MuonH", "adafactor"),
    Case("MuonH", "muon", examples=1024),
    Case("MuonH", "muon"),
    Case("shampoo 1/2", "muon"),
    Case("soap", "adam"),
)


def init(width: int, depth: int, matrices: int, key: jax.Array) -> PyTree:
    """Weights of variance 1 / fan_in."""
    shapes = {"in": (INPUTS, width), **{f"branch_{i}": (depth, width, width) for i in range(matrices)}}
    shapes["out"] = (width, OUTPUTS)
    keys = jax.random.split(key, len(shapes))
    draw = {name: jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}
    return {name: w / math.sqrt(w.shape[-2]) for name, w in draw.items()}


def features(params: PyTree, x: jax.Array, factors: dm.ForwardFactors) -> dict[str, jax.Array]:
    """The last state h^L and the logits of inputs x, (examples, INPUTS)."""
    branches = [w for name, w in sorted(params.items()) if name.startswith("branch")]

    def block(h: jax.Array, weights: list[jax.Array]) -> tuple[jax.Array, None]:
        z = h
        for w in weights:
            z = jnp.tanh(z) @ w
        return h + factors.branch * z, None

    hidden = jax.lax.scan(block, x @ params["in"], branches)[0]
    return {"hidden": hidden, "logits": factors.output * jnp.tanh(hidden) @ params["out"]}


def specs_at(case: Case, width: int, depth: int) -> PyTree:
    return dm.infer_specs(
        lambda w, d: init(w, d, case.matrices, jax.random.key(0)), layout="in_out", width=width, depth=depth
    )


@functools.cache
def update_rules(case: Case) -> Rules:
    """What `dm.wrap` finds, which is the same at all sizes."""
    return rules_of(specs_at(case, 64, 4), UPDATES[case.update])


def probe_at(case: Case, width: int, depth: int) -> Probe:
    p, specs = dm.parameterization(case.parameterization), specs_at(case, width, depth)
    update, rule = UPDATES[case.update], case.rule
    if rule == "wrap":
        update = wrapped(p, specs, update_rules(case))
    factors = dm.factors(p, specs, p.init_family if rule == "wrap" else rule)
    rates: Any = jax.tree.map(lambda _: 1.0, specs, is_leaf=is_spec) if rule == "wrap" else factors.lr
    forward = p.forward_factors(width=width, depth=depth)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(case.examples, INPUTS)).astype(np.float32)
    y = rng.normal(size=(case.examples, OUTPUTS)).astype(np.float32)

    def transformation(hyper: Any) -> optax.GradientTransformation:
        return optax.chain(update, scale_by_tree(hyper["lr"]), optax.scale(-LEARNING_RATE))

    def start(hyper: Any) -> Any:
        drawn = init(width, depth, case.matrices, jax.random.key(hyper["seed"]))
        params = jax.tree.map(lambda w, s: w * s, drawn, factors.init)
        return params, transformation(hyper).init(params)

    def step(state: Any, batch: Any, hyper: Any) -> Any:
        params, opt_state = state
        inputs, targets = batch
        loss = lambda w: jnp.mean((features(w, inputs, forward)["logits"] - targets) ** 2)  # noqa: E731
        moves, opt_state = transformation(hyper).update(jax.grad(loss)(params), opt_state, params)
        return (optax.apply_updates(params, moves), opt_state), None

    def hyper(group: str, seed: int) -> Any:
        return {"seed": np.uint32(seed), "lr": {k: np.float32(lr * (group in ("all", k))) for k, lr in rates.items()}}

    def observe(state: Any, batch: Any, hyper: Any) -> dict[str, jax.Array]:
        return features(state[0], batch[0], forward)

    return Probe(jax.jit(start), step, observe, hyper, tuple(specs), (x, y))


def row(case: Case, sizes: Sizes) -> str:
    """A row of the table."""
    axes: dict[str, Any] = {"widths": sizes.widths, "depth": 4, "depths": sizes.depths, "width": 64}
    report = dm.coordinate_check(functools.partial(probe_at, case), **axes, steps=(sizes.steps,), max_seeds=32)
    cells = {(s.axis, s.group): f"{s.plain.slope:+.2f} {s.answer}" for s in report.slopes if s.judged}
    groups = ("in", "branch_0", "branch_1", "out", "all")
    answers = [cells.get((axis, group), "") for axis in ("width", "depth") for group in groups]
    update = case.update if case.examples == EXAMPLES else f"{case.update}, {case.examples} examples"
    return " | ".join(["", update, *map(str, case[1:4]), *answers, report.verdict, ""]).strip()


def main(arguments: Sequence[str]) -> None:
    cases, sizes = (MATRICES, Sizes((64, 128, 256), (4, 8, 16, 32), 5)) if "matrices" in arguments else (CASES, Sizes())
    groups = ("read-in", "inner", "outer", "readout", "all")
    head = ["update", "rule", "parameterization", "matrices"]
    head += [f"{axis}: {group}" for axis in ("width", "depth") for group in groups]
    print(" | ".join(["", *head, "verdict", ""]).strip() + "\n" + "|---" * (len(head) + 1) + "|")
    for case in cases:
        print(row(case, sizes), flush=True)


if __name__ == "__main__":
    prepare_cpu(1)
    main(sys.argv[1:])

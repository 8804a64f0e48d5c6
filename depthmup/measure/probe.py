"""Trains a model for a few steps, one group of parameters at a time, and measures how far its features move."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup.backend import cores
from depthmup.rules.optim import families_of, from_factors, shifted
from depthmup.rules.parameterization import ForwardFactors, LeafFactors, Parameterization
from depthmup.rules.specs import PyTree, leaves_of, rescale, shift
from depthmup.rules.specs import factors as leaf_factors
from depthmup.rules.specs import group as group_of

ALL = "all"


class Probe(NamedTuple):
    """A model at one shape, ready to be trained for a few steps.

    init: hyper -> state, the same for all groups. The compiled program does not contain it: give it jitted, or as it
      is where compiling takes longer than it runs.
    step: (state, batch, hyper) -> (state, anything).
    features: (state, batch, hyper) -> {quantity: array}; verdicts use "hidden" (..., width) and "logits". None: `step`
      returns the features of the state that it was given, beside the new one.
    hyper: (group, seed) -> hyper, a pytree of arrays with which `step` trains only this group of parameters.
    groups: names of the groups of parameters to train one at a time; the group "all" is added.
    batch: the batch that each step trains on and that the features are computed from.

    Checks share one compiled program if they give the same function objects `step` and `features`.
    """

    init: Callable[..., Any]
    step: Callable[..., Any]
    features: Callable[..., Mapping[str, jax.Array]] | None
    hyper: Callable[[str, int], PyTree]
    groups: tuple[str, ...]
    batch: PyTree


def probe(
    p: Parameterization,
    specs: PyTree,
    *,
    init: Callable[[jax.Array], PyTree],
    loss: Callable[[PyTree, PyTree, ForwardFactors], jax.Array],
    features: Callable[[PyTree, PyTree, ForwardFactors], Mapping[str, jax.Array]],
    optimizer: str,
    learning_rate: float,
    batch: PyTree,
    head_dim: float | None = None,
    **options: Any,
) -> Probe:
    """A `Probe` of your own model from plain functions, trained by `dm.optimizer`.

    Args:
      init: PRNG key -> parameters with the standard fan-in init; `probe` rescales them.
      loss: (parameters, batch, forward factors) -> scalar.
      features: (parameters, batch, forward factors) -> {"hidden": (..., width), "logits": ...}.
      optimizer, learning_rate: of `dm.optimizer`. batch: what loss and features are given, the same at every step.
      head_dim: size of an attention head at this width, for the attention factor; None without attention.
      **options: options of `dm.optimizer`, such as eps.

    Returns:
      The `Probe` that `coordinate_check` trains.
    """
    spec = leaves_of(specs)[0]
    forward = p.forward_factors(width=spec.width, depth=spec.depth, head_dim=head_dim)
    factors = leaf_factors(p, specs, families_of(optimizer, specs))
    offsets = shift(specs, factors.init)

    def transformation(hyper: Any) -> optax.GradientTransformation:
        return shifted(offsets, from_factors(hyper["factors"], optimizer, learning_rate, specs=specs, **options))

    def weights(stored: PyTree) -> PyTree:
        return jax.tree.map(lambda w, s: w * s, stored, factors.multiplier)

    def start(hyper: Any) -> Any:
        params = rescale(p, specs, init(jax.random.key(hyper["seed"])))
        return params, transformation(hyper).init(params)

    def step(state: Any, batch: PyTree, hyper: Any) -> Any:
        params, opt_state = state
        grads = jax.grad(lambda stored: loss(weights(stored), batch, forward))(params)
        updates, opt_state = transformation(hyper).update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    return Probe(
        jax.jit(start),
        step,
        lambda state, batch, hyper: features(weights(state[0]), batch, forward),
        lambda group, seed: {"seed": np.uint32(seed), "factors": train_only(factors, specs, group)},
        groups_of(specs),
        batch,
    )


def groups_of(specs: PyTree) -> tuple[str, ...]:
    """Names of the groups of parameters that scale alike, in tree order."""
    return tuple(dict.fromkeys(group_of(s) for s in leaves_of(specs)))


def train_only(factors: LeafFactors, specs: PyTree, group: str) -> LeafFactors:
    """`factors` with the LR factor of every leaf outside `group` set to 0 ("all": unchanged)."""
    masked = jax.tree.map(lambda lr, s: lr * float(group in (ALL, group_of(s))), factors.lr, specs)
    return jax.tree.map(np.float32, factors._replace(lr=masked))


def feature_changes(
    probe: Probe,
    groups: Sequence[str],
    steps: int,
    seeds: Sequence[int],
    starts: MutableMapping[int, Any] | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """{group: {quantity: RMS changes since initialization after 1..steps steps, (seeds, steps)}}, each group trained
    alone from the same initial states.

    The same compiled code computes the features before and after, so an unchanged feature has a change of exactly 0.
    starts: {seed: initial state} of those that are there already; the others are added. Each core trains a group.
    Raises ValueError if "hidden" or "logits" is missing.
    """

    def train(program: Callable[..., dict[str, jax.Array]], arguments: Any) -> dict[str, np.ndarray]:
        return jax.device_get(program(*arguments))

    changes: dict[str, list[dict[str, np.ndarray]]] = {group: [] for group in groups}
    with ThreadPoolExecutor(cores()) as pool:
        for seed in seeds:
            start = starts[seed] if starts and seed in starts else probe.init(probe.hyper(groups[0], seed))
            if starts is not None:
                starts[seed] = start
            trained = []
            for group in groups:
                arguments = start, probe.batch, probe.hyper(group, seed)
                trained.append(pool.submit(train, _program(probe, steps, arguments)(), arguments))
            for group, future in zip(groups, trained, strict=True):
                changes[group].append(future.result())
    return {group: {q: np.stack([rms[q] for rms in all_seeds]) for q in all_seeds[0]}
            for group, all_seeds in changes.items()}  # fmt: skip


class Ahead(NamedTuple):
    """The program that `feature_changes` will run for a probe, before it is compiled. start: the initial state of a
    seed."""

    start: Any
    compile: Callable[[], Any]

    @classmethod
    def of(cls, probe: Probe, steps: int, seed: int) -> Ahead:
        hyper = probe.hyper(ALL, seed)
        start = probe.init(hyper)
        return cls(start, _program(probe, steps, (start, probe.batch, hyper)))


def compile_ahead(programs: Iterable[Ahead]) -> None:
    """Compile programs in parallel, and while the next ones are traced: half of a check is compilation."""
    with ThreadPoolExecutor(cores()) as pool:
        for compiled in [pool.submit(program.compile) for program in programs]:
            compiled.result()


def _program(probe: Probe, steps: int, arguments: Any) -> Callable[[], Callable[..., dict[str, jax.Array]]]:
    """() -> the compiled program of a training, for arguments of these shapes, which all probes of the same functions
    share. It is traced here and compiled when it is first called."""
    traced, compiled = _programs(probe.step, probe.features, steps)
    leaves, treedef = jax.tree.flatten(arguments)
    shapes = treedef, tuple(map(jax.typeof, leaves))
    if shapes in compiled:
        return lambda: compiled[shapes]
    lowered = traced.lower(*arguments)
    return lambda: compiled.setdefault(shapes, lowered.compile())


@functools.lru_cache(maxsize=64)
def _programs(step: Callable, features: Callable | None, steps: int) -> tuple[Any, dict[Any, Any]]:
    """((initial state, batch, hyper) -> {quantity: RMS changes, (steps,)}, jitted; {shapes: that compiled for them})

    The init is no part of this program: for a list of blocks it would be the larger part of its compilation.
    """

    @jax.jit  # traced once, and called at two places
    def step_and_features(state: Any, batch: PyTree, hyper: PyTree) -> tuple[Any, Mapping[str, jax.Array]]:
        after, before = step(state, batch, hyper)
        return after, before if features is None else features(state, batch, hyper)

    def run(start: Any, batch: PyTree, hyper: PyTree) -> dict[str, jax.Array]:
        shapes = jax.eval_shape(step_and_features, start, batch, hyper)[1]
        _check_features(shapes)

        def rms(now: Mapping[str, jax.Array], before: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            return {k: jnp.sqrt(jnp.mean((now[k] - before[k]) ** 2)) for k in now}

        # Both are values that a step has stored: within one step XLA computes a value anew, and not in the same way, in
        # each operation that it is a part of, so that what does not move would change in its last digits.
        def advance(carry: Any, step_number: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
            state, latest, before = carry
            before = {k: jnp.where(step_number == 1, latest[k], before[k]) for k in before}
            after, now = step_and_features(state, batch, hyper)
            return (after, dict(now), before), rms(latest, before)

        nothing = {k: jnp.zeros(shape.shape, shape.dtype) for k, shape in shapes.items()}
        (_, last, before), changes = jax.lax.scan(advance, (start, nothing, nothing), jnp.arange(steps + 1))
        return {k: jnp.append(changes[k][2:], change) for k, change in rms(last, before).items()}

    return jax.jit(run), {}


def _check_features(features: Mapping[str, Any]) -> None:
    if not {"hidden", "logits"} <= features.keys():
        raise ValueError(f"features must have 'hidden' and 'logits', they have {sorted(features)}")

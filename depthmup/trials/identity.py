"""What decides the rows of a model of one's own, as hashes: programs with their constants, factors, batches.

The hash of a result is made of all operations that lead to it, each with the hashes of its operands. Names and
operations that it does not need do not change it. What a function of the host computes (jax.pure_callback) is not seen.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from depthmup.data.batch_checks import shapes_of
from depthmup.data.user_feed import digest_of
from depthmup.files import first_difference
from depthmup.rules.specs import PyTree, flatten_shapes, starred
from depthmup.train.model_task import ModelTask, TaskPrograms
from depthmup.train.step import Batch, Hyper

HASHES = "hashes"  # entry of an identity: {where, or "": {what, in words: hash}}
# Settings of JAX that change results.
SETTINGS = ("enable_x64", "default_prng_impl", "threefry_partitionable", "default_matmul_precision")
Hashes = dict[str, str]  # {what, in words: hash}


class Programs(NamedTuple):
    """Hashes of what a program of a sweep computes. step: also the evaluation of held-out batches."""

    init: Hashes
    step: Hashes


def settings() -> dict[str, Any]:
    """The settings of JAX that change results, as JSON."""
    return {name: getattr(jax.config, f"jax_{name}") for name in SETTINGS}


def programs(task: ModelTask, traced: TaskPrograms, hyper: Hyper, held_out: Sequence[Batch]) -> Programs:
    """The hashes of a task's programs. traced: those of its init and step. held_out: the shapes of the first count."""
    init, optimizer = _of_init(traced, hyper)
    step = {**of_program("the training step", traced.step), "the optimizer's first state": optimizer}
    if held_out:
        closed = jax.make_jaxpr(task.evaluate)(traced.state, shapes_of(held_out[0]), hyper)
        step |= of_program("the evaluation", closed)
    return Programs(init, step)


def of_loss(task: ModelTask, hyper: Hyper, batch: Batch) -> Hashes:
    """Hashes of the loss of a step; none where what the model returns is more than arrays (own_outputs)."""
    *inputs, targets = shapes_of(batch)
    state = jax.eval_shape(task.init, hyper)
    try:
        outputs, _ = jax.eval_shape(task.outputs, state.params, state.statistics, inputs, hyper, jax.random.key(0))
    except TypeError:
        return {}
    return of_program("the loss", jax.make_jaxpr(task.criterion)(outputs, targets))


def of_optimizer(task: ModelTask, hyper: Hyper) -> Hashes:
    """Hashes of an optimizer's update."""

    def update(params: PyTree, state: PyTree, hyper: Hyper) -> Any:
        return task.transformation(hyper, hyper.learning_rate).update(params, state, params)

    state = jax.eval_shape(task.init, hyper)
    return of_program("the optimizer", jax.make_jaxpr(update)(state.params, state.opt_state, hyper))


def of_factors(hyper: Hyper) -> Hashes:
    """Hashes of a parameterization's factors, and of the learning rate by a rule of batch sizes."""
    trees = {
        **{f"the parameterization's factors of {name}": tree for name, tree in hyper.factors._asdict().items()},
        "the parameterization's forward factors": hyper.forward,
        "the factors of stored weights": hyper.divisor,
        "the learning rate's factor": hyper.learning_rate,
    }
    return {words: digest_of(tree) for words, tree in trees.items()}


def difference(saved: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The first entry in which two identities differ, in words; "" if none. Hashes are compared where both have them: a
    sweep may ask for other sizes and optimizers, a check for other shapes."""
    before, now = ({key: value for key, value in tree.items() if key != HASHES} for tree in (saved, here))
    hashes: Mapping[str, Hashes] = saved.get(HASHES, {})
    changed = (
        f"{what} changed{f' ({where})' if where else ''}"
        for where, of_where in here.get(HASHES, {}).items()
        for what, value in of_where.items()
        if hashes.get(where, {}).get(what, value) != value
    )
    return first_difference(before, now) or next(changed, "")


def _of_init(traced: TaskPrograms, hyper: Hyper) -> tuple[Hashes, str]:
    """(hashes of the init of parameters of each kind and of a model's other arrays, that of the optimizer's)"""
    # Inputs are known by their names: how many there are depends on the optimizer.
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(hyper)[0]]
    outputs = iter(_Program(by_value=True).outputs(traced.init.jaxpr, traced.init.consts, names))
    state = traced.state
    of = {name: [next(outputs) for _ in jax.tree.leaves(field)] for name, field in state._asdict().items()}
    init = _of_kinds(state.params, of["params"])
    return init | {"the init of the model's other arrays": _hash(*of["statistics"])}, _hash(*of["opt_state"])


def _of_kinds(params: PyTree, values: Sequence[str]) -> Hashes:
    kinds: dict[str, list[str]] = {}
    for path, value in zip(flatten_shapes(params)[0], values, strict=False):
        kinds.setdefault(f"the init of {starred(path)}", []).append(value)
    return {kind: _hash(*of_kind) for kind, of_kind in kinds.items()}


def of_init(closed: Any, params: PyTree) -> Hashes:
    """Hashes of the init of parameters of each kind. closed: the jaxpr of what starts with them."""
    names = [str(i) for i in range(len(closed.jaxpr.invars))]
    return _of_kinds(params, _Program(by_value=True).outputs(closed.jaxpr, closed.consts, names))


def of_program(what: str, closed: Any) -> Hashes:
    """The hash of a program, and of the values of its constants of each shape."""
    program = _Program()
    names = [f"{i} {var.aval.dtype}{var.aval.shape}" for i, var in enumerate(closed.jaxpr.invars)]
    whole = _hash(*program.outputs(closed.jaxpr, closed.consts, names))
    return {what: whole} | {
        f"{what}'s constants of shape {shape}": _hash(*values) for shape, values in program.constants.items()
    }


class _Program:
    """Hashes of a program's results.

    by_value: whether the values of constants are part of them. Otherwise their shapes are, and constants has
    {shape: hashes of their values}.
    """

    def __init__(self, by_value: bool = False) -> None:
        self.by_value, self.constants = by_value, dict[str, list[str]]()
        self._inner: dict[int, tuple[Any, str]] = {}  # by id: the jaxpr, which keeps its id, and its hash

    def outputs(self, jaxpr: Any, consts: Sequence[Any], names: Sequence[str]) -> list[str]:
        """The hashes of the results of a jaxpr whose inputs have these names."""
        values = dict(zip(jaxpr.invars, names, strict=True))
        values |= dict(zip(jaxpr.constvars, map(self._constant, consts), strict=True))

        def of(atom: Any) -> str:
            if not hasattr(atom, "val"):
                return values[atom]
            number = np.asarray(atom.val)
            return self._constant(atom.val) if number.ndim else f"{atom.aval.dtype} {number.tobytes().hex()}"

        for equation in jaxpr.eqns:
            whole = _hash(equation.primitive.name, self._text(equation.params), *map(of, equation.invars))
            values.update((out, f"{whole} {i}") for i, out in enumerate(equation.outvars))
        return [of(atom) for atom in jaxpr.outvars]

    def _constant(self, value: Any) -> str:
        array = value if hasattr(value, "dtype") else np.asarray(value)
        hashed = digest_of(array)
        if self.by_value:
            return hashed
        shape = str(tuple(array.shape))
        same = self.constants.setdefault(shape, [])
        same.append(hashed)
        return f"constant {len(same)} {shape}"

    def _text(self, value: Any) -> str:
        """A parameter of an operation as text that is the same in every process."""
        if hasattr(value, "jaxpr") and hasattr(value, "consts"):
            return self._called(value, value.jaxpr, value.consts)
        if hasattr(value, "eqns"):
            return self._called(value, value, ())
        if isinstance(value, dict):
            return ", ".join(f"{key}={self._text(value[key])}" for key in sorted(value, key=str) if key != "name")
        if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
            return f"({', '.join(map(self._text, value))})"
        if isinstance(value, set | frozenset):
            return str(sorted(map(str, value)))
        if isinstance(value, np.ndarray | jax.Array):
            return self._constant(value)
        return re.sub(r"0x[0-9a-f]+", "", str(value))

    def _called(self, owner: Any, jaxpr: Any, consts: Sequence[Any]) -> str:
        """The hash of a jaxpr that an operation calls; blocks of a model share theirs."""
        if id(owner) not in self._inner:
            names = [f"{i} {var.aval}" for i, var in enumerate(jaxpr.invars)]
            self._inner[id(owner)] = owner, _hash(*self.outputs(jaxpr, consts, names))
        return self._inner[id(owner)][1]


def _hash(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]

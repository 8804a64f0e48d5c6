"""Do hidden layers start with He's variance for the activation before them?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.reading.graph import ADDITIONS, CLOSED, PRODUCTS, Graph, Node, reached
from depthmup.rules.specs import PyTree, check_shapes, flatten_shapes, leaves_of, parameters_only, starred

SAMPLES = 2**17  # of z, at least
TOLERANCE = 0.05  # of variance x fan_in x q, beside the error of sampling
ERRORS = 5.0  # standard errors of sampling that it may be off
MIXES = ("reduce", "cum", "sort", "arg", "select_and", "fft")  # the names of operations that mix units begin so


@dataclasses.dataclass(frozen=True)
class Gain:
    """The init of one hidden weight. gain: its variance x fan_in. q: <phi(z)^2>, z ~ N(0, 1), of the activation phi
    before it, 1 without one. ok: whether gain x q = 1 within the error of sampling."""

    path: str
    gain: float
    q: float
    ok: bool


@dataclasses.dataclass(frozen=True)
class GainAudit:
    """What `audit_gain` found: a row for each hidden weight that was judged."""

    rows: tuple[Gain, ...]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    def __str__(self) -> str:
        off = {starred(row.path): row for row in reversed(self.rows) if not row.ok}
        if not off:
            return "hidden layers keep the size of their inputs"
        wide = max(len("hidden weight"), *map(len, off))
        lines = [f"{'hidden weight':{wide}}{'variance x fan_in':>19}{'needed':>9}{'a layer changes the signal by':>31}"]
        for path, row in sorted(off.items()):
            lines.append(f"{path:{wide}}{row.gain:19.3g}{1 / row.q:9.3g}{math.sqrt(row.gain * row.q):31.3g}")
        return "\n".join(lines)


def audit_gain(specs: PyTree, apply: Callable[..., Any], params: PyTree, *inputs: Any) -> GainAudit:
    """Whether hidden weights start with He's variance 1 / (q fan_in), where q = <phi(z)^2>, z ~ N(0, 1), for the
    activation phi before each: 2 / fan_in behind a ReLU (q = 1/2), 2.352 / fan_in behind a GELU.

    With this variance pre-activations keep their size from layer to layer. With 1 / fan_in, the default of many
    libraries, the signal of a plain ReLU network falls as 2^(-L/2). In residual branches it is the constant c = 1/q of
    AM-muP's c / (K fan_in), where other constants are as good.

    Args:
      specs: what `infer_specs` gives. apply: (params, *inputs) -> logits. params: as the model's own init gives them,
        before `rescale`. inputs: arrays, whose values do not matter.

    Returns:
      A `GainAudit`: the gain of each judged weight beside He's.

    phi is all that the forward pass does between the last layer, bias, norm or sum and the weight, so that activations
    need no name; behind a norm it acts on z ~ N(0, 1), too. Weights behind a pooling and those that start at 0 are not
    judged. Paper B, section 3.2, which has q = <phi'(z)^2>: the same for ReLU and linear layers; for others that
    variance keeps gradients and not activations (2.19 / fan_in for GELU; docs/theory.md section 6).

    Raises SpecError if the parameters are not those of the specs.
    """
    check_shapes(specs, params)
    leaves = dict(zip(flatten_shapes(params)[0], jax.tree.leaves(parameters_only(params)), strict=True))
    hidden = {spec.path: spec for spec in leaves_of(specs) if spec.role == "hidden"}
    graph, rows = Graph(apply, params, inputs), dict[str, Gain]()
    for node in graph.nodes:
        for path in (graph.parameters_of(node) & hidden.keys()) - rows.keys() if graph.weighs(node) else ():
            values = np.asarray(leaves[path], np.float64)
            gain = float(np.var(values)) * hidden[path].fan_in
            (activation,) = graph.activations(node)
            q = _mean_square(graph, activation)
            if q and gain:
                allowed = TOLERANCE + ERRORS * math.sqrt(2 / values.size)
                rows[path] = Gain(path, gain, q, abs(gain * q - 1) <= allowed)
    return GainAudit(tuple(rows[path] for path in hidden if path in rows))


def _mean_square(graph: Graph, activation: Node) -> float | None:
    """<phi(z)^2>, z ~ N(0, 1), where phi is the function from the last layers, norms or sums to this value; None if phi
    mixes units."""
    values = reached([activation], lambda node: () if _ends(graph, node) else graph.activations(node))
    inputs = sorted((node for node in values if _ends(graph, node)), key=lambda node: node.order)
    between = sorted(values.difference(inputs), key=lambda node: node.order)
    if any(node.op.startswith(MIXES) for node in between):
        return None
    draws = -(-SAMPLES // min(math.prod(node.shape) for node in inputs))

    def phi(*normals: jax.Array) -> jax.Array:
        numbers = dict(zip(inputs, normals, strict=True))
        for node in between:
            numbers[node] = node.evaluate(*(numbers.get(operand, operand.value) for operand in node.operands))
        return numbers[activation]

    normals = [_normal(number, (draws, *node.shape), node) for number, node in enumerate(inputs)]
    return float(jnp.square(jax.vmap(phi)(*normals)).mean())


def _ends(graph: Graph, node: Node) -> bool:
    """Whether an activation function is applied to this value: a layer's output, a norm's, or a sum of activations."""
    fed = graph.activations(node)
    if not fed or node.op in (*PRODUCTS, *CLOSED, "carry", "carried", "emitted") or graph.normed(node):
        return True
    if len(fed) == 1:  # a bias, or the scale of a norm
        return node.op in ("add", "mul") and bool(graph.parameters_of(node))
    return node.op in ADDITIONS and fed[0].paths != fed[1].paths


def _normal(seed: int, shape: tuple[int, ...], like: Node) -> jax.Array:
    """The quantiles of N(0, 1) in a random order: their averages have little error."""
    count = math.prod(shape)
    quantiles = jax.scipy.special.ndtri((np.arange(count) + 0.5) / count)
    return jax.random.permutation(jax.random.key(seed), quantiles).reshape(shape).astype(jnp.result_type(like.value))

"""The neural tangent kernel (NTK) of finite networks; for dense layers without forming the gradients of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from depthmup.measure.kernels import check_outputs
from depthmup.names import at_least_one, unknown
from depthmup.rules.specs import PyTree, flatten_shapes

INPUTS, SHIFTS = "dense_inputs", "dense_shifts"  # names of the Flax collections that `linen_dense` writes


class Outer(NamedTuple):
    """The gradients of one example's outputs F_c with respect to a parameter W, as sums of outer products over
    positions t: dF_c / dW^l = sum_t a^l_t (g^l_ct)^T. l is the layer if W is a stack, else there is one layer."""

    a: jax.Array  # inputs of the layer, (layers, positions, fan_in)
    g: jax.Array  # gradients with respect to its outputs, (layers, outputs, positions, fan_out)


def empirical_ntk(
    f: Callable[[PyTree, jax.Array], jax.Array],
    params: PyTree,
    x: jax.Array,
    x2: jax.Array | None = None,
    *,
    rates: PyTree = None,
    groups: PyTree = None,
    only: Sequence[str] | None = None,
    block: int = 32,
    dense: Callable[[PyTree, jax.Array], dict[str, Outer]] | None = None,
) -> dict[str, jax.Array]:
    """{group: Theta, (P x outputs, P' x outputs)}, where Theta = sum over the group's parameters of rate * dF dF'. The
    NTK is the sum of all groups.

    With rates = `factors(p, specs).lr` it is the kernel that moves F in gradient descent with base learning rate eta_0,
    in any storage form. With base width and depth 1 it is the kernel of docs/theory.md section 2, except that the
    read-in's part is D times as large (section 1). In rows and columns, the outputs of one example are next to each
    other. The function may be jitted, and vmapped over params of several seeds.

    Args:
      f: (params, x (examples, ...)) -> (examples,) or (examples, outputs). It is called with single examples.
      x: (P, ...), the examples of the rows.
      x2: (P', ...), the examples of the columns, such as training examples where x are test examples; None: x.
      rates: tree of one learning-rate factor for each parameter; None: 1.
      groups: tree of one name for each parameter, such as `group` of its spec; None: all are "all".
      only: names of the groups to compute; None: all.
      block: number of examples at a time. Memory holds the gradients of 2 x block x outputs. With more than one block,
        the gradients of x2 are computed anew for each block of x, in a loop. In a loop convolutions on a CPU are slow:
        take block >= P for convolutional models.
      dense: (params, one example) -> {path of a parameter: its `Outer`}. For these parameters the kernel is
        (a.a')(g.g'), and no gradient is formed (unless there are so many positions that this takes longer). For Flax
        models use `linen_dense`.

    Returns:
      {group: kernel}, (P x outputs, P' x outputs) each.

    Raises ValueError for an unknown group, a tree of another structure than params, or x and x2 that do not match.
    """
    at_least_one("block", block)
    if x2 is not None and x2.shape[1:] != x.shape[1:]:
        raise ValueError(f"examples of x and x2 must have one shape, got {x.shape[1:]} and {x2.shape[1:]}")
    check_outputs("f", jax.eval_shape(f, params, x[:1]), x[:1])
    paths, (leaves, treedef) = list(flatten_shapes(params)[0]), jax.tree.flatten(params)
    rate_of = [1.0] * len(leaves) if rates is None else _leaves_like(params, rates, "rates")
    group_of = ["all"] * len(leaves) if groups is None else _leaves_like(params, groups, "groups")
    indices = _indices(group_of, only)

    def gradients(example: jax.Array) -> list[Outer]:
        outers = {} if dense is None else {path: _smaller(outer) for path, outer in dense(params, example).items()}
        whole_leaves = {i: leaves[i] for i in indices if paths[i] not in outers}

        def outputs(whole_leaves: dict[int, jax.Array]) -> jax.Array:
            tree = jax.tree.unflatten(treedef, [whole_leaves.get(i, leaf) for i, leaf in enumerate(leaves)])
            return f(tree, example[None]).reshape(-1)

        for i, jacobian in (jax.jacrev(outputs)(whole_leaves) if whole_leaves else {}).items():
            outers[paths[i]] = _whole(jacobian.reshape(len(jacobian), -1))
        return [outers[paths[i]] for i in indices]

    def product(rows: list[Outer], columns: list[Outer]) -> dict[str, jax.Array]:
        result: dict[str, Any] = {}
        for i, row, column in zip(indices, rows, columns, strict=True):
            result[group_of[i]] = result.get(group_of[i], 0) + rate_of[i] * _product(row, column)
        return result

    kernels = _over_blocks(jax.vmap(gradients), product, x, x2, block)
    return {name: _joined(kernel, len(x), len(x if x2 is None else x2)) for name, kernel in kernels.items()}


def _over_blocks(
    outers_of: Callable[[jax.Array], list[Outer]],
    product: Callable[[list[Outer], list[Outer]], dict[str, jax.Array]],
    x: jax.Array,
    x2: jax.Array | None,
    block: int,
) -> dict[str, jax.Array]:
    """{group: products of blocks of x with blocks of x2, (blocks, blocks, block, outputs, block, outputs)}"""
    columns = x if x2 is None else x2
    if max(len(x), len(columns)) <= block:
        rows = outers_of(x)
        products = product(rows, rows if x2 is None else outers_of(x2))
        return {name: kernel[None, None] for name, kernel in products.items()}

    def against_all(part: jax.Array) -> dict[str, jax.Array]:
        rows = outers_of(part)
        return jax.lax.map(lambda examples: product(rows, outers_of(examples)), _blocks(columns, block))

    return jax.lax.map(against_all, _blocks(x, block))


def _indices(group_of: Sequence[str], only: Sequence[str] | None) -> list[int]:
    """The places of the parameters of some groups. Raises ValueError for an unknown group."""
    for name in only or ():
        if name not in group_of:
            raise unknown("group of parameters", name, set(group_of))
    return [i for i, name in enumerate(group_of) if only is None or name in only]


def linen_dense(model: nn.Module, *arguments: Any, **state: Any) -> Callable[[PyTree, jax.Array], dict[str, Outer]]:
    """The argument `dense` of `empirical_ntk`, for the kernels and biases of every `nn.Dense` of a Linen model.

    The model is called as `model.apply({"params": params, **state}, x, *arguments)`, so params must be the weights in
    its equation: in a storage form with multipliers, give `forward_params(...)` as params and lr * multiplier^2 as
    rates. A layer may be called several times. A layer in a scan works if the scan stacks all collections on axis 0, as
    in our scanned models. Every kernel must be used as it is stored, without `nn.WeightNorm`.

    Args:
      model: a Linen module.
      arguments: of its call, behind x, such as the factors.
      state: its other collections, such as batch_stats.

    Returns:
      A function (params, x) -> {path: what each layer multiplies}.
    """

    def intercept(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
        layer = context.module
        if type(layer) is not nn.Dense or context.method_name != "__call__":
            return call(*args, **kwargs)
        number = len(layer.get_variable(INPUTS, "x", ()))
        layer.sow(INPUTS, "x", *args, **kwargs)
        return layer.perturb(str(number), call(*args, **kwargs), collection=SHIFTS)

    def outers(params: PyTree, example: jax.Array) -> dict[str, Outer]:
        def run(mutable: list[str], **shifts: PyTree) -> tuple[jax.Array, Any]:
            with nn.intercept_methods(intercept):
                return model.apply({**state, "params": params, **shifts}, example[None], *arguments, mutable=mutable)

        shapes = jax.eval_shape(lambda: run([INPUTS, SHIFTS])[1].get(SHIFTS, {}))
        zeros = jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), shapes)

        def outputs(shifts: PyTree) -> tuple[jax.Array, PyTree]:
            outputs, sown = run([INPUTS], **{SHIFTS: shifts})
            return outputs.reshape(-1), sown[INPUTS]

        result = {}
        slopes, inputs = map(flatten_dict, jax.jacrev(outputs, has_aux=True)(zeros) if shapes else ({}, {}))
        weights = flatten_dict(params)
        for (*path, _), calls in inputs.items():
            kernel = weights[*path, "kernel"]
            *stack, fan_in, fan_out = kernel.shape
            layers, ys = math.prod(stack), [slopes[*path, str(call)] for call in range(len(calls))]
            a = jnp.concatenate([x.reshape(layers, -1, fan_in) for x in calls], axis=1)
            g = jnp.concatenate([y.reshape(len(y), layers, -1, fan_out) for y in ys], axis=2)
            g = jnp.moveaxis(g, 0, 1).astype(kernel.dtype)
            result["/".join((*path, "kernel"))] = Outer(a, g)
            if (*path, "bias") in weights:
                result["/".join((*path, "bias"))] = Outer(jnp.ones((layers, 1, 1), g.dtype), g.sum(2, keepdims=True))
        return result

    return outers


def _whole(jacobian: jax.Array) -> Outer:
    """Full gradients, (outputs, parameters), as an `Outer` whose a is 1."""
    return Outer(jnp.ones((1, 1, 1), jacobian.dtype), jacobian[None, :, None])


def _smaller(outer: Outer) -> Outer:
    """The `Outer`, or the full gradient where its product with another example's gradient takes fewer operations."""
    positions, (_, outputs, _, fan_out), fan_in = outer.a.shape[1], outer.g.shape, outer.a.shape[2]
    if positions**2 * (fan_in + outputs**2 * fan_out) <= outputs**2 * fan_in * fan_out:
        return outer
    return _whole(jnp.einsum("ltn,lctm->clnm", *outer).reshape(outputs, -1))


def _product(row: Outer, column: Outer) -> jax.Array:
    """dF dF' between the examples of two blocks, (examples, outputs, examples, outputs), for one parameter."""
    inputs = jnp.einsum("pltn,qlsn->lptqs", row.a, column.a)
    slopes = jnp.einsum("plctm,qldsm->lpctqds", row.g, column.g)
    return jnp.einsum("lptqs,lpctqds->pcqd", inputs, slopes)


def _blocks(x: jax.Array, block: int) -> jax.Array:
    """x in blocks, (blocks, block, ...), or as one smaller block; copies of the last example fill up the last block."""
    size = min(block, len(x))
    return jnp.concatenate([x, jnp.repeat(x[-1:], -len(x) % size, axis=0)]).reshape(-1, size, *x.shape[1:])


def _joined(kernel: jax.Array, rows: int, columns: int) -> jax.Array:
    """Join the blocks of a kernel and cut off the filled-up examples: (blocks, blocks, block, outputs, block, outputs)
    -> (rows x outputs, columns x outputs)."""
    kernel = jnp.moveaxis(kernel, 1, 3)
    examples = kernel.reshape(-1, kernel.shape[2], math.prod(kernel.shape[3:5]), kernel.shape[5])
    return examples[:rows, :, :columns].reshape(rows * kernel.shape[2], -1)


def _leaves_like(params: PyTree, tree: PyTree, what: str) -> list[Any]:
    pairs = map(jax.tree_util.tree_leaves_with_path, (params, tree))
    expected, leaves = ({jax.tree_util.keystr(path): leaf for path, leaf in pair} for pair in pairs)
    if odd := ", ".join(sorted(expected.keys() ^ leaves.keys())[:3]):
        raise ValueError(f"{what} must be a tree with one leaf for each parameter; they differ in {odd}")
    return list(leaves.values())

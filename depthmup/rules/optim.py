"""Optax transformations that apply a parameterization's per-leaf factors, and the optimizer factory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from depthmup.names import NOT_NEGATIVE, POSITIVE, Range, check_32_bits, short, unknown
from depthmup.rules.parameterization import FAMILIES, FamilyName, LeafFactors, Parameterization, check_parameterization
from depthmup.rules.specs import (
    ParamSpec,
    PyTree,
    check_shapes,
    is_hidden,
    is_spec,
    leaves_of,
    matched,
    named_as,
    rescaling,
    shift,
)
from depthmup.rules.specs import factors as leaf_factors

Decay = Literal["uncoupled", "coupled"]
OptimizerName = Literal["sgd", "momentum", "adam", "adamw", "lion", "adafactor", "muon", "muonh", "adamh"]
ADAM = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}
MUON = {"momentum": 0.95, "nesterov": True, **ADAM}
DEFAULTS = {"momentum": 0.9, **ADAM, "weight_decay": 0.0}  # of the numbers of a config's optimizer
TINY = 1e-30  # the least norm that is divided by
SHARE = Range(low=0, high=1)  # of an average that is kept at each step
RANGES = {
    "learning_rate": POSITIVE,
    "momentum": SHARE,
    "b1": SHARE,
    "b2": SHARE,
    "eps": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
}


class Optimizer(NamedTuple):
    """An optimizer.

    family: the family of its update.
    options: its options beside learning rate and weight decay, with their defaults.
    direction: (specs, **options) -> the transformation that makes the update, before factors and learning rate; None:
      the update is the gradient.
    rest: the family of all leaves but the hidden weights, if these alone have `family`.
    sphere: the matrices of hidden weights keep their Frobenius norm (hyperball optimization, Wen et al. 2025).
    grid, check: log2 of learning rates: the ends of a sweep's grid, and the small one of a coordinate check.
    """

    family: FamilyName
    options: Mapping[str, Any]
    direction: Callable[..., optax.GradientTransformation] | None
    rest: FamilyName | None = None
    sphere: bool = False
    grid: tuple[float, float] = (-12.0, -3.0)
    check: float = -10.0

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers of a config's optimizer: DEFAULTS, but for the defaults of its own options."""
        return {name: self.options.get(name, default) for name, default in DEFAULTS.items()}


def _adam(specs: PyTree, **options: Any) -> optax.GradientTransformation:
    return optax.scale_by_adam(**options)


def _adafactor(specs: PyTree) -> optax.GradientTransformation:
    return optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0), optax.scale_by_param_block_rms())


def _muon(specs: PyTree, momentum: Any, nesterov: bool, b1: Any, b2: Any, eps: Any) -> optax.GradientTransformation:
    """optax.contrib.muon before its learning rate, for the hidden weights; Adam for all others."""
    leaves = leaves_of(specs)
    hidden = [spec.role == "hidden" for spec in leaves]
    axes = [
        optax.contrib.MuonDimensionNumbers(*s.matrix_axes) if yes else None
        for s, yes in zip(leaves, hidden, strict=True)
    ]
    # A constant: the fans of a hidden weight grow alike.
    sizes = jax.tree.map(lambda spec: max(1.0, spec.fan_out / spec.fan_in) ** 0.5, specs, is_leaf=is_spec)

    def of_matrices(tree: PyTree) -> PyTree:
        """The axes of each leaf, but where a leaf is hidden."""
        if is_hidden(tree):
            return tree
        weights, treedef = jax.tree.flatten(tree, is_leaf=is_hidden)
        return jax.tree.unflatten(treedef, [w if is_hidden(w) else dims for w, dims in zip(weights, axes, strict=True)])

    def labels(tree: PyTree) -> PyTree:  # NNX hands over trees without the variables that its specs have
        if is_hidden(tree):
            return "adam"
        return jax.tree.unflatten(
            jax.tree.structure(tree, is_leaf=is_hidden), ["muon" if yes else "adam" for yes in hidden]
        )

    muon = optax.contrib.scale_by_muon(beta=momentum, nesterov=nesterov, eps=eps, weight_dimension_numbers=of_matrices)
    adam = _adam(specs, b1=b1, b2=b2, eps=eps)
    return optax.partition({"muon": optax.chain(muon, scale_by_tree(sizes)), "adam": adam}, labels)


Norm = Callable[[jax.Array], jax.Array]


def _on_hidden(
    specs: PyTree, function: Callable[[jax.Array, jax.Array, Norm], jax.Array]
) -> optax.GradientTransformation:
    """function(update, weight, norm) of each hidden weight; norm: the Frobenius norms of the matrices of a stack."""

    def of_leaf(u: Any, w: Any, spec: ParamSpec) -> Any:
        if spec.role != "hidden" or is_hidden(u):
            return u
        axes = sum(spec.matrix_axes, ())
        return function(u, w, lambda x: jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True)))

    def update(updates: PyTree, params: PyTree | None) -> PyTree:
        if params is None:
            raise ValueError("a step on the sphere needs the parameters: call tx.update(grads, state, params)")
        return jax.tree.map(of_leaf, updates, params, specs, is_leaf=is_hidden)

    return optax.stateless(update)


def _relative(u: jax.Array, w: jax.Array, norm: Norm) -> jax.Array:
    """The update with the norm of the weight."""
    return u * norm(w) / jnp.maximum(norm(u), TINY)


def _back_to_the_sphere(u: jax.Array, w: jax.Array, norm: Norm) -> jax.Array:
    """The step to w + u, moved along the ray to the norm of w."""
    return (w + u) * (norm(w) / jnp.maximum(norm(w + u), TINY)) - w


OPTIMIZERS: dict[str, Optimizer] = {  # that a config may name
    "sgd": Optimizer("sgd", {}, None, grid=(-8.0, 1.0)),
    "momentum": Optimizer(
        "sgd",
        {"momentum": DEFAULTS["momentum"], "nesterov": False},
        lambda specs, momentum, nesterov: optax.trace(momentum, nesterov),
        grid=(-11.0, -2.0),
        check=-12.0,
    ),
    "adam": Optimizer("adam", ADAM, _adam),
    "adamw": Optimizer("adam", ADAM, _adam),
}
OTHERS: dict[str, Optimizer] = {
    "lion": Optimizer(
        "adam", {"b1": 0.9, "b2": 0.99}, lambda specs, b1, b2: optax.scale_by_lion(b1, b2), grid=(-15.0, -6.0)
    ),
    "adafactor": Optimizer("adafactor", {}, _adafactor, grid=(-10.0, -1.0)),
    "muon": Optimizer("muon", MUON, _muon, rest="adam", grid=(-10.0, -1.0)),
    "muonh": Optimizer("muon", MUON, _muon, rest="adam", sphere=True, grid=(-10.0, -1.0)),
    "adamh": Optimizer("adafactor", ADAM, _adam, rest="adam", sphere=True, grid=(-10.0, -1.0)),
}
OPTIONS = {name: row.options for name, row in (OPTIMIZERS | OTHERS).items()}
GRIDS = {name: row.grid for name, row in (OPTIMIZERS | OTHERS).items()}


def _row(name: str) -> Optimizer:
    known = OPTIMIZERS | OTHERS
    if not isinstance(name, str) or name not in known:
        raise unknown("optimizer", name, known, "; any other optax transformation goes through dm.wrap")
    return known[name]


def family_of(name: str) -> FamilyName:
    """The family of an optimizer, of "muon" that of the hidden weights. Raises ValueError for an unknown optimizer."""
    return _row(name).family


def looks_at_weights(name: str | None) -> bool:
    """Whether an optimizer takes the weights of the form "mup" alone: Adafactor's root mean square and Muon's singular
    values are those of a whole leaf, of which another form may store some entries times a factor. None: another one."""
    return name is not None and (name in OTHERS or _row(name).family not in ("sgd", "adam"))


def keeps_norm(name: str) -> bool:
    """Whether hidden weights keep their Frobenius norm."""
    return _row(name).sphere


def families_of(name: str, specs: PyTree) -> PyTree:
    """The family of each leaf's update, a tree: "muon" trains the hidden weights by Muon and all others by Adam."""
    row = _row(name)
    leaves_of(specs)  # raises for what is no tree of specs
    rest = row.rest or row.family
    return jax.tree.map(lambda s: row.family if s.role == "hidden" else rest, specs, is_leaf=is_spec)


def scale_by_parameterization(
    p: Parameterization, specs: PyTree, family: PyTree = "adam"
) -> optax.GradientTransformation:
    """Multiply each leaf's update by its LR factor.

    Put it after the transformation that makes the update and before the learning rate, which may be a schedule:

      optax.chain(optax.scale_by_lion(), dm.scale_by_parameterization(p, specs, family="adam"),
                  optax.scale_by_learning_rate(lr))

    Args:
      family: "sgd" if the update is linear in the gradient; "adam" if its entries are of order 1, whatever the size of
        the gradient; "muon" if its singular values are; "adafactor" if its entries are of the order of the weight's own
        root mean square; "shampoo2" if its singular values are inverse to the gradient's. Or a tree of these names in
        the structure of `specs`. Nothing checks it here, where no gradient is seen: `dm.wrap` finds the families by
        itself and warns of a given one that contradicts them.

    Returns:
      An Optax transformation without a state, of updates in the structure of `specs`.

    Raises SpecError for what is no tree of specs, ValueError for an unknown family.

    Source: docs/rules.md section 0, rows `SGD LR` to `Shampoo2 LR`.
    """
    lr = values_by_path(specs, leaf_factors(p, specs, family).lr)
    return of_parameters(specs, lambda specs: scale_by_tree(of_each_spec(specs, lr)))


def scale_by_eps_factors(p: Parameterization, specs: PyTree) -> optax.GradientTransformation:
    """Divide each leaf's gradient by its eps factor, which does the same as multiplying Adam's eps by the factor.

    Put it after clipping, right before `optax.scale_by_adam` or another transformation m / (sqrt(v) + eps).
    Source: docs/rules.md section 0, row `Adam eps`.

    Args:
      p: the parameterization. specs: what `infer_specs` returns.

    Returns:
      An Optax transformation without a state, of gradients in the structure of `specs`.

    Raises SpecError for what is no tree of specs.
    """
    return of_parameters(
        specs, lambda specs: scale_by_tree(jax.tree.map(lambda e: 1 / e, leaf_factors(p, specs, "adam").eps))
    )


def optimizer(
    p: Parameterization,
    specs: PyTree,
    name: str,
    learning_rate: optax.ScalarOrSchedule,
    *,
    momentum: float | jax.Array | None = None,
    nesterov: bool | None = None,
    b1: float | jax.Array | None = None,
    b2: float | jax.Array | None = None,
    eps: float | jax.Array | None = None,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    decay: Decay = "uncoupled",
    mask: PyTree | Callable[[PyTree], PyTree] | None = None,
) -> optax.GradientTransformation:
    """SGD, Adam, Lion, Adafactor, Muon, MuonH or AdamH with the LR, eps and weight decay that `p` gives to every leaf.

    One step changes the leaf w by
      w <- w - learning_rate (f.lr u + f.lr f.decay weight_decay w),
    where f are the leaf's factors (docs/rules.md section 0) and u is the optimizer's update (Adam's eps times f.eps).

    Args:
      name: "sgd", "momentum", "adam" or "adamw", the last two the same here, since decay is 0 unless given; "lion";
        "adafactor" (optax's: updates clipped, and times the weight's root mean square); "muon" (optax.contrib's) for
        the hidden weights, with Adam for all others, at the same base learning rate (`dm.wrap` takes one with two);
        "muonh", "adamh": the update u of Muon or Adam as w - lr |w| u / |u| for hidden weights, and back to the
        Frobenius norm |w| of each matrix, so that decay acts on the others alone, which Adam trains (docs/rules.md).
      learning_rate: a number, a traced scalar or an Optax schedule; the per-leaf factors multiply it at each step.
      momentum, nesterov: options of "momentum", by default 0.9 and False, and of "muon", "muonh": 0.95 and True.
      b1, b2, eps: options of Adam (and of "muon", "muonh", "adamh"), by default 0.9, 0.999 and 1e-8; b1, b2 of "lion",
        0.9 and 0.99.
      weight_decay: base weight decay, a number or an Optax schedule, applied apart from the gradient (as in AdamW) for
        every optimizer; 0: none.
      decay: "uncoupled": learning rate x decay is the same at every width, depth and gamma0. "coupled": f.decay is
        left out, so that each leaf's decay follows its learning rate (and depends on the storage form).
      mask: the leaves to decay, as a tree of bools, a prefix of one such as {"dense": True, "norm": False}, or a
        function from params to either, as in `optax.adamw`.

    Returns:
      An Optax transformation; `update` takes gradients and parameters in the structure of `specs`.

    Raises ValueError for an unknown name, a number that is out of range, an option of another optimizer, or a
    parameterization that is not defined for this optimizer; SpecError for a hidden weight of "muon" that is no matrix.
    """
    check_parameterization(p)
    options = {"momentum": momentum, "nesterov": nesterov, "b1": b1, "b2": b2, "eps": eps}
    chosen = {key: value for key, value in options.items() if value is not None}
    applied = p.in_form("mup") if looks_at_weights(name) else p

    def tx_of(specs: PyTree) -> optax.GradientTransformation:
        factors = leaf_factors(applied, specs, families_of(name, specs))
        tx = from_factors(
            factors, name, learning_rate, weight_decay=weight_decay, decay=decay, mask=mask, specs=specs, **chosen
        )
        return around_offsets(p, specs, tx if applied is p else in_form_mup(p, specs, tx))

    return of_parameters(specs, tx_of)


def from_factors(
    factors: LeafFactors,
    name: str,
    learning_rate: optax.ScalarOrSchedule,
    *,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    decay: Decay = "uncoupled",
    mask: PyTree | Callable[[PyTree], PyTree] | None = None,
    specs: PyTree | None = None,
    **options: Any,
) -> optax.GradientTransformation:
    """`optimizer` from trees of factors, and for "muon" the specs. The factors may be traced: then call this inside the
    jitted step."""
    row = _row(name)
    if decay not in get_args(Decay):
        raise unknown("decay", decay, get_args(Decay))
    for key in options:
        if key not in row.options:
            raise ValueError(f"{key} is not an option of {name!r}, which has {', '.join(row.options) or 'none'}")
    check_numbers({"learning_rate": learning_rate, "weight_decay": weight_decay, **options})
    parts = []
    if not FAMILIES[row.family].linear:
        parts += [scale_by_tree(jax.tree.map(lambda e: 1 / e, factors.eps))]
    if row.direction:
        parts += [row.direction(specs, **{**row.options, **options})]
    if row.sphere:
        parts += [_on_hidden(specs, _relative)]
    parts += [scale_by_tree(factors.lr)]
    if not isinstance(weight_decay, float | int) or weight_decay != 0:
        per_leaf = factors.lr if decay == "coupled" else jax.tree.map(lambda a, b: a * b, factors.lr, factors.decay)
        if row.sphere:  # there decay would change the length of a step, and nothing else
            per_leaf = jax.tree.map(lambda s, f: 0.0 if s.role == "hidden" else f, specs, per_leaf, is_leaf=is_spec)
        parts += [add_decayed_weights(weight_decay, per_leaf, mask)]
    parts += [optax.scale_by_learning_rate(learning_rate)]
    return optax.chain(*parts, *([_on_hidden(specs, _back_to_the_sphere)] if row.sphere else []))


def clip_by_global_norm(p: Parameterization, specs: PyTree, norm: float | jax.Array) -> optax.GradientTransformation:
    """`optax.clip_by_global_norm` of the gradient in the weights of the form "mup", whatever form of `p` stores them.

    A stored factor makes the gradient of a weight larger: in the absorbed form the norm of what is stored grows as
    sqrt(depth), and a threshold that was tuned at the base clips deeper models more. Put it in front of the optimizer,
    `optax.chain(dm.clip_by_global_norm(p, specs, 1.0), tx)`. Source: docs/rules.md section 0, row `clipping`.

    Args:
      p: the parameterization. specs: what `infer_specs` returns.
      norm: the largest norm, above 0.

    Returns:
      An Optax transformation of gradients in the structure of `specs`.

    Raises ValueError for a norm that is not positive.
    """
    if not isinstance(norm, jax.core.Tracer):
        POSITIVE.check("norm", norm)
    if p.form == "mup":
        return optax.clip_by_global_norm(norm)
    return of_parameters(specs, lambda specs: after_clipping(norm, optax.identity(), divisor(p, specs)))


def after_clipping(
    norm: float | jax.Array | None, tx: optax.GradientTransformation, divisor: PyTree | None = None
) -> optax.GradientTransformation:
    """`tx` of gradients whose global norm is clipped to `norm`. None: of the gradients as they are.

    divisor: of stored weights, in whose coordinates the norm is measured; it may be traced."""
    if norm is None:
        return tx
    if divisor is None:
        return optax.chain(optax.clip_by_global_norm(norm), tx)
    inverse = jax.tree.map(lambda s: 1 / s, divisor)

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None, **extra: Any) -> tuple[PyTree, PyTree]:
        size = optax.tree.norm(scaled_leaves(updates, inverse))
        clipped = jax.tree.map(
            lambda u: u if is_hidden(u) else jnp.where(size < norm, u, (u / size.astype(u.dtype)) * norm),
            updates,
            is_leaf=is_hidden,
        )
        return optax.with_extra_args_support(tx).update(clipped, state, params, **extra)

    return optax.GradientTransformationExtraArgs(tx.init, update)


def check_numbers(values: Mapping[str, Any]) -> None:
    """Raises ValueError for a hyperparameter, {name: value}, that is no number or out of range. Schedules pass, and so
    do traced values."""
    for name, value in values.items():
        if name in RANGES and not callable(value) and not isinstance(value, jax.core.Tracer):
            RANGES[name].check(name, value)
            check_32_bits(name, float(value))
        elif name == "nesterov" and not isinstance(value, bool):
            raise ValueError(f"nesterov must be True or False, got {short(value)}")


def in_form_mup(p: Parameterization, specs: PyTree, tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """`tx` on the weights of the form "mup" and their gradients, whatever form of `p` stores them."""
    return tx if p.form == "mup" else stored_divided(divisor(p, specs), tx)


def divisor(p: Parameterization, specs: PyTree) -> PyTree:
    """What the form of `p` divides each weight of the form "mup" by to store it."""
    weights, stored = (leaf_factors(q, specs, p.init_family).init for q in (p.in_form("mup"), p))
    return jax.tree.map(lambda a, b: a / b, weights, stored)


def around_offsets(
    p: Parameterization, specs: PyTree, tx: optax.GradientTransformation
) -> optax.GradientTransformation:
    """`tx` on stored parameters without the part that stores their offsets, on which no weight decay acts."""
    return shifted(shift(specs, rescaling(p, specs)), tx)


def shifted(shift: PyTree | None, tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """`tx` on weights, where weight + shift is stored. The shift may be traced."""
    if shift is None:
        return tx

    def weights(params: PyTree) -> PyTree:
        return jax.tree.map(
            lambda w, s: w if is_hidden(w) else w - jnp.asarray(s, w.dtype), params, shift, is_leaf=is_hidden
        )

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None, **extra: Any) -> tuple[PyTree, PyTree]:
        params = None if params is None else weights(params)
        return optax.with_extra_args_support(tx).update(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(lambda params: tx.init(weights(params)), update)


def stored_divided(divisor: PyTree, tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """`tx` on weights and their gradients, where weight / divisor is stored. The divisor may be traced."""
    inverse = jax.tree.map(lambda s: 1 / s, divisor)

    def init(params: PyTree) -> PyTree:
        return tx.init(scaled_leaves(params, divisor))

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None, **extra: Any) -> tuple[PyTree, PyTree]:
        weights = None if params is None else scaled_leaves(params, divisor)
        updates, state = optax.with_extra_args_support(tx).update(
            scaled_leaves(updates, inverse), state, weights, **extra
        )
        return scaled_leaves(updates, inverse), state

    return optax.GradientTransformationExtraArgs(init, update)


def of_parameters(
    specs: PyTree, tx_of: Callable[[PyTree], optax.GradientTransformation], some: bool = False
) -> optax.GradientTransformationExtraArgs:
    """What `tx_of` makes of the specs in the structure of the parameters that it is given (`matched`).

    some: whether a part of the parameters will do. Its `init` raises SpecError for parameters of another model or shape
    than the specs'."""
    whole = tx_of(specs)
    made: dict[str, optax.GradientTransformation] = {}

    def of(fitting: PyTree) -> optax.GradientTransformationExtraArgs:
        if fitting is specs:
            return optax.with_extra_args_support(whole)
        key = str(jax.tree.structure(fitting, is_leaf=is_spec))
        if key not in made:
            made[key] = tx_of(fitting)
        return optax.with_extra_args_support(made[key])

    def init(params: PyTree) -> PyTree:
        fitting = matched(specs, params)
        if not is_hidden(params):
            check_shapes(fitting if some else specs, named_as(fitting, params))
        return of(fitting).init(params)

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None, **extra: Any) -> tuple[PyTree, PyTree]:
        return of(matched(specs, updates)).update(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(init, update)


def values_by_path(specs: PyTree, tree: PyTree) -> dict[str, Any]:
    """{path: value} of a tree in the structure of the specs."""
    return dict(zip((spec.path for spec in leaves_of(specs)), jax.tree.leaves(tree), strict=True))


def of_each_spec(specs: PyTree, values: Mapping[str, Any]) -> PyTree:
    """The values of paths, in the structure of the specs."""
    return jax.tree.map(lambda spec: values[spec.path], specs, is_leaf=is_spec)


def scale_by_tree(scale: PyTree) -> optax.GradientTransformation:
    """Multiply each leaf of the updates by a scalar and keep its dtype; leaves hidden by `optax.masked` stay hidden."""

    return optax.stateless(lambda updates, params: scaled_leaves(updates, scale))


def scaled_leaves(tree: PyTree, scale: PyTree) -> PyTree:
    """Each leaf times a scalar, in the leaf's dtype; leaves hidden by `optax.masked` stay hidden, and those that are no
    parameters, which have no scalar, as they are."""
    return jax.tree.map(
        lambda leaf, s: leaf if is_hidden(leaf) or s is None else leaf * jnp.asarray(s, leaf.dtype),
        tree,
        scale,
        is_leaf=is_hidden,
    )


def add_decayed_weights(
    weight_decay: optax.ScalarOrSchedule,
    scale: PyTree,
    mask: PyTree | Callable[[PyTree], PyTree] | None = None,
) -> optax.GradientTransformation:
    """Add weight_decay * scale * w to the update of each leaf w where `mask` is true; `scale` is a tree of scalars."""

    def init(params: PyTree) -> PyTree:
        return optax.ScaleByScheduleState(jnp.zeros([], jnp.int32)) if callable(weight_decay) else optax.EmptyState()

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        if params is None:
            raise ValueError("weight decay needs the parameters: call tx.update(grads, state, params)")
        rate = weight_decay
        if callable(weight_decay):
            rate, state = weight_decay(state.count), optax.ScaleByScheduleState(optax.safe_increment(state.count))

        def add(u: Any, w: Any, s: Any, chosen: Any = True) -> Any:
            return u if is_hidden(u) or not chosen else u + jnp.asarray(rate * s, u.dtype) * w

        trees = (params, scale) if mask is None else (params, scale, of_each(mask, params))
        return jax.tree.map(add, updates, *trees, is_leaf=is_hidden), state

    return optax.GradientTransformation(init, update)


def of_each(mask: PyTree | Callable[[PyTree], PyTree], params: PyTree) -> PyTree:
    """The mask's bool for each leaf of the parameters."""
    prefix = mask(params) if callable(mask) else mask
    try:
        return jax.tree.map(lambda b, part: jax.tree.map(lambda _: b, part, is_leaf=is_hidden), prefix, params)
    except ValueError as error:
        raise ValueError(
            "mask must be a tree of bools with the structure of the parameters, or a prefix: "
            f"{str(error).splitlines()[0]}"
        ) from None

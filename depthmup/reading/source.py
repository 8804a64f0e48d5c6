"""The arguments of `setup` as one object: a user's model at any width and depth, its specs and where factors go.

The forward pass is computed at the base width and a small depth. The specs of all other shapes come from shapes alone:
nothing grows with the size of the model but a trace of its init.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

from depthmup.reading.audit import InitAudit, Initializers
from depthmup.reading.forward import place, repeated
from depthmup.reading.frameworks import FrameworkModel, adapt
from depthmup.reading.gain import GainAudit, audit_gain
from depthmup.reading.graph import (
    ForwardError,
    Program,
    Site,
    Uses,
    contractions,
    sites,
    traced_program,
    uses_of,
)
from depthmup.reading.graph.axes import Axis
from depthmup.reading.infer import inferred
from depthmup.reading.overrides import overrides_by_path, placed_by
from depthmup.reading.reading import Reading, growing_axes, refuse_unplaced
from depthmup.reading.roles import GROWING
from depthmup.reading.size_constants import Constant, constants, constants_of_products, head_power
from depthmup.rules.parameterization import Parameterization, Role
from depthmup.rules.specs import (
    Layout,
    Overrides,
    ParamSpec,
    PyTree,
    Shape,
    SpecError,
    flatten_shapes,
    leaves_of,
    starred,
)

Method = TypeVar("Method", bound=Callable[..., Any])
SHALLOW = 4  # depth of the forward pass where no base depth is given


def _keeping(attribute: str, first: int = 0) -> Callable[[Method], Method]:
    """A decorator of methods of `Source`: what they make of arguments is kept in an attribute, {(name of the method,
    *arguments): result}. first: the number of the first argument that counts."""

    def keeping(method: Method) -> Method:
        @functools.wraps(method)
        def kept(source: Source, *arguments: Any) -> Any:
            results, key = getattr(source, attribute), (method.__name__, *arguments[first:])
            if key not in results:
                results[key] = method(source, *arguments)
            return results[key]

        return cast(Method, kept)

    return keeping


_once = _keeping("_kept")
_once_of_models = _keeping("_kept_of_models")  # for all sources of the same models: no parameterization changes it
_once_of_depth = _keeping("_kept", first=1)  # the first width answers for all: without a base, it may be large


@dataclasses.dataclass(eq=False)
class Source:
    """The arguments of `setup`; p: the parameterization with its base.

    base_heads: whether the base head size of each attention is that at the base width; else all have p.base_head_dim.
    """

    p: Parameterization
    factory: Callable[..., Any]
    inputs: tuple[Any, ...]
    options: Mapping[str, Any]
    call: Callable[..., Any] | None
    output: Callable[[Any], jax.Array]
    overrides: Overrides
    residual: bool
    layout: Layout | None
    fan_in_init: bool | None
    base_heads: bool = False
    warned: set[str] = dataclasses.field(default_factory=set)
    """The warnings that were given already, at any shape."""

    def __post_init__(self) -> None:
        self._kept: dict[Any, Any] = {}
        self._kept_of_models: dict[Any, Any] = {}  # what no parameterization changes
        self.initializers = Initializers(lambda width, depth: self.model(width, depth).traced)

    def __reduce__(self) -> tuple[Any, ...]:
        return Source, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @_once_of_models
    def model(self, width: int, depth: int) -> FrameworkModel:
        return adapt(self.factory, width, depth, self.inputs, self.options, self.call, self.output)

    def params(self, width: int, depth: int) -> PyTree:
        """The model's parameters, with shapes for arrays."""
        return self.model(width, depth).shapes[0]

    def shapes(self, width: int, depth: int) -> dict[str, Shape]:
        """{path of a parameter: its shape}"""
        return flatten_shapes(self.params(width, depth))[0]

    @_once_of_models
    def _program(self, width: int, depth: int) -> Program:
        """The forward pass at any width: no array is made."""
        model = self.model(width, depth)
        params, state = model.shapes
        return traced_program(functools.partial(_logits, model), params, self.inputs, (state,))

    @_once_of_models
    def _contractions(self, width: int, depth: int) -> list[int]:
        return contractions(self._program(width, depth).closed.jaxpr)

    def under(self, p: Parameterization) -> Source:
        """The same models under another parameterization."""
        other = dataclasses.replace(self, p=p, base_heads=self.base_heads and p.base_head_dim == self.p.base_head_dim)
        other._kept_of_models, other.initializers = self._kept_of_models, self.initializers
        return other

    def with_base_heads(self) -> Source:
        """The same models with the head sizes that they have at the base."""
        base = self.p.base_width, self.p.base_depth
        small = self.model(*base)
        if small.factors is not None:
            largest = self.head_dim(*base) or 1
        else:
            largest = max((site.head_dim for site in self.attentions(*base)), default=1)
        other = self.under(dataclasses.replace(self.p, base_head_dim=largest))
        other.base_heads = True
        return other

    def head_dim(self, width: int, depth: int) -> int | None:
        """The head size of a model that takes factors: its attribute of this name, else the number of terms of the
        products of queries and keys. None without attention, or if the products differ in it."""
        depth = self.shallow(depth)
        model = self.model(width, depth)
        if hasattr(model.made, "head_dim"):
            return model.made.head_dim
        numbers = self._numbers_of_attentions(width, depth)
        products = self._contractions(width, depth) if numbers else []
        sizes = {products[number] for number in numbers}
        return sizes.pop() if len(sizes) == 1 else None

    @_once_of_depth
    def _numbers_of_attentions(self, width: int, depth: int) -> set[int]:
        return {site.product for site in self.attentions(width, depth)}

    def attentions(self, width: int, depth: int) -> list[Site]:
        return [site for site in self.sites(width, depth) if site.kind in ("attention", "bilinear") and site.head_dim]

    def attention_powers(self, width: int, depth: int) -> dict[int, float]:
        """{number of a product of queries and keys whose heads grow with width: the power of 1/head_dim that the model
        multiplies it by}: 1/2 in most models, 0 (T5), or 1 (`size_constants.head_power`). To divide queries or keys by
        their norm is a power of 1/2.

            q @ k.T / sqrt(head_dim)            # {number of q @ k.T: 0.5}
            q @ k.T / head_dim                  # {number of q @ k.T: 1.0}
        """
        result, attentions = dict[int, float](), self.attentions(width, depth)
        fixed = self._fixed(attentions, width, depth)
        for site in (site for site in attentions if site not in fixed):
            small, large = (self._numbers_of_products(w, depth)[site.product] for w in self.widths(width, depth))
            power = head_power(small, large, site.head_dim, self.growth(site, width, depth))
            result[site.product] = power + 0.5 * site.one_unit_norm
        return result

    def growth(self, product: Site, width: int, depth: int) -> float:
        """How many times as many terms an attention or product sums over at the larger of `widths`."""
        return self._contractions(self.widths(width, depth)[1], depth)[product.product] / product.head_dim

    def _fixed(self, products: Sequence[Site], width: int, depth: int) -> list[Site]:
        """Those of these attentions and products that sum over as many terms at the larger of `widths`."""
        return [site for site in products if self.growth(site, width, depth) == 1]

    @_once_of_models
    def numbers(self, width: int, depth: int) -> list[Constant]:
        """The numbers that multiply values of the forward pass, without those of factors."""
        return constants(self._program(width, depth).closed, self.params(width, depth))

    @_once_of_models
    def _numbers_of_products(self, width: int, depth: int) -> dict[int, list[Constant]]:
        return constants_of_products(self._program(width, depth).closed, self.params(width, depth))

    def shallow(self, depth: int) -> int:
        """The depth at which a model of this depth is traced: the base depth, or a small one."""
        return min(depth, max(2, self.p.base_depth) if self.p.has_base else SHALLOW)

    def traced_shape(self, width: int, depth: int) -> tuple[int, int]:
        """The shape at which the forward pass is computed."""
        return self.p.base_or(width, depth)[0], self.shallow(depth)

    def widths(self, width: int, depth: int) -> tuple[int, int]:
        """The widths of the forward passes that are compared: that of `traced_shape`, and this one or twice that."""
        narrow, _ = self.traced_shape(width, depth)
        return narrow, max(width, 2 * narrow)

    @property
    def depth_in_init(self) -> bool:
        """Whether the power of depth is in the init of branches (AM-muP), so that specs must tell who is in one."""
        return self.residual and self.p.arithmetic_mean

    def sites(self, width: int, depth: int, times: int = 1) -> list[Site]:
        """Where the factors go, from the forward pass at so many times the base width: it is computed, and `width` may
        be large. Products that sum over as many terms at every width are left out; others are attentions if their
        factor has a place."""
        return self._sites_of_widths(*self.widths(width, depth), depth, times)

    @_once_of_models
    def _sites_of_widths(self, narrow: int, wide: int, depth: int, times: int) -> list[Site]:
        products = [site for site in self._sites_at(narrow, depth) if site.kind == "bilinear"]
        terms = self._contractions(wide, depth) if products else []
        fixed = {site.product for site in products if terms[site.product] == site.head_dim}
        return [
            dataclasses.replace(site, kind="attention") if site.kind == "bilinear" and site.parts else site
            for site in self._sites_at(times * narrow, depth)
            if site.kind != "bilinear" or site.product not in fixed
        ]

    @_once_of_models
    def _sites_at(self, width: int, depth: int) -> list[Site]:
        """`graph.sites` at this width, at which the forward pass may be computed."""
        model, program = self.model(width, depth), self._program(width, depth)
        return sites(model.run, model.shapes[0], *self.inputs, program=program, state=(model.random_state,))

    def deepens(self, width: int, depth: int) -> bool:
        """Whether more depth adds parameters, which blocks that share their weights do not."""
        return jax.tree.leaves(self.params(width, depth)) != jax.tree.leaves(self.params(width, 2 * depth))

    @_once_of_depth
    def adds_nothing(self, width: int, depth: int) -> bool:
        """Whether the forward pass adds no activations, as in a network without residual branches. False if it cannot
        be followed."""
        try:
            return self.deepens(width, depth) and not any(
                site.kind in ("branch", "sum") for site in self.sites(width, depth)
            )
        except ForwardError:
            return False

    def additions(self, width: int, depth: int) -> int:
        """The number of residual additions that repeat with depth; 0 if it cannot be counted."""
        sites = self.sites(width, depth)
        if any(site.kind == "branch" and site.is_closed for site in sites):
            return 0
        return sum(site.times for site in self.branches(width, depth))

    def branches(self, width: int, depth: int) -> list[Site]:
        """The branches that repeat with depth."""
        leaves = leaves_of(self.roles(width, depth))
        return repeated(self.sites(width, depth), {spec.path for spec in leaves if spec.in_branch})

    @_once
    def roles(self, width: int, depth: int) -> PyTree:
        """The specs, without the places of factors."""
        extended = self._extended(self.roles, width, depth) or self._widened(width, depth)
        return extended or self._inferred(width, depth)

    @_once
    def specs(self, width: int, depth: int) -> PyTree:
        """The specs, with the places of factors in a model that takes none."""
        return self._extended(self.specs, width, depth) or self._placed(width, depth)

    def audit(self, width: int, depth: int) -> InitAudit:
        """The audit of the init at this shape, against the init at the base shape."""
        return self.initializers.audit(self.p, self.roles(width, depth))

    def gains(self, width: int, depth: int) -> GainAudit:
        """`audit_gain` of the model's own init at a shape."""
        model = self.model(width, depth)
        params, _ = model.init_eagerly(jax.random.key(0))
        return audit_gain(self.roles(width, depth), traceable(model)[0], params, *model.inputs)

    def _inferred(self, width: int, depth: int) -> PyTree:
        def zeros(width: int, depth: int) -> PyTree:
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.params(width, depth))

        residual = self.residual and not self.adds_nothing(width, depth)
        layout, reading = self._reading(width, depth, residual)
        return inferred(
            zeros,
            width=width,
            depth=depth,
            residual=residual,
            layout=layout,
            overrides=self.rules(width, depth, 2 * depth),
            reading=reading,
        )

    def _reading(self, width: int, depth: int, residual: bool) -> tuple[Layout | None, Reading | None]:
        """(the layout of matrices, what the forward pass says of the parameters): the same at all widths. It may say
        nothing where no factor needs it."""
        model = self.model(width, depth)
        layout = self.layout or model.layout
        try:
            uses = self.uses(width, depth)
            for times in (1, 2) if residual else (1,):
                self.sites(width, times * depth)
        except ForwardError:
            if self.p.kinds:
                raise
            return layout, None
        places_matter = self.depth_in_init or (self.p.kinds and model.factors is None)

        def refuse(roles: Mapping[str, Role]) -> None:
            if places_matter:
                paths = self.shapes(self.widths(width, depth)[0], depth)
                refuse_unplaced(roles, paths, self.sites(width, depth), vectors_too=not self.depth_in_init)

        unseen = {} if self.layout else uses.unseen  # a library's layout need not be that of kernels
        return layout or uses.layout, Reading(uses, lambda times: self.sites(width, times * depth), refuse, unseen)

    def growing(self, width: int, depth: int) -> frozenset[Axis]:
        """The axes of parameters that grow with width, at the base."""
        narrow, _ = self.traced_shape(width, depth)
        return growing_axes(self.shapes(narrow, depth), self.shapes(2 * narrow, depth))

    def uses(self, width: int, depth: int) -> Uses:
        """What the forward pass at the base width does with each axis."""
        return self._uses_at(self.traced_shape(width, depth)[0], depth)

    @_once_of_models
    def _uses_at(self, width: int, depth: int) -> Uses:
        growing = growing_axes(self.shapes(width, depth), self.shapes(2 * width, depth))
        return uses_of(self._program(width, depth), self.params(width, depth), growing)

    def rules(self, width: int, *depths: int) -> Mapping[str, str]:
        """The overrides for models of these depths, with globs alone."""
        return overrides_by_path(self.overrides, (self.model(width, depth).named for depth in depths))

    def _placed(self, width: int, depth: int) -> PyTree:
        specs, model = self.roles(width, depth), self.model(width, depth)
        if model.factors is not None:
            return specs
        values, (narrow, _) = self._needed(width, depth) if self.p.kinds else [], self.traced_shape(width, depth)
        head_dims: dict[int, float] = {}
        if "attention" in self.p.kinds:
            products, powers = self._contractions(width, depth), self.attention_powers(width, depth)
            for site in [site for site in values if site.kind == "attention" and site.head_dim]:
                base = site.head_dim if self.base_heads else self.p.base_head_dim  # sites are those of the base width
                lacking = 1 - powers.get(site.product, 0.5)  # heads that do not grow have one factor at all widths
                # The form "absorbed" takes the model for one that divides by sqrt(head_dim).
                head_dims[site.product] = self.p.base_head_dim * (products[site.product] / base) ** (2 * lacking)
        return place(
            specs,
            values,
            self.p.kinds,
            head_dims,
            placed_by(self.rules(width, depth), [spec.path for spec in leaves_of(specs)]),
            growth=width / narrow,
            wider=lambda: [site for site in self.sites(width, depth, times=2) if site.parts is not None],
        )

    def _needed(self, width: int, depth: int) -> list[Site]:
        """The sites without attentions that have no place for their factor and need none: their heads have one size at
        all widths, that of the base."""
        sites = self.sites(width, depth)
        lacking = [site for site in self.attentions(width, depth) if site.parts is None]
        if not lacking:
            return sites
        based = [site for site in lacking if self.base_heads or self.p.base_head_dim == site.head_dim]
        needless = self._fixed(based, width, depth)
        return [site for site in sites if site not in needless]

    def _widened(self, width: int, depth: int) -> PyTree | None:
        """The roles at the width of the traced forward pass, for the parameters at this one. None where an axis does
        not grow as the width does, which is then a question, or where no role is known there."""
        narrow, _ = self.traced_shape(width, depth)
        if narrow == width:
            return None
        try:
            known = {spec.path: spec for spec in leaves_of(self.roles(narrow, depth))}
        except SpecError:
            return None  # the error of this width is raised
        shapes, twice = self.shapes(narrow, depth), self.shapes(2 * narrow, depth)
        at_width, structure = flatten_shapes(self.params(width, depth))
        if not known.keys() == shapes.keys() == twice.keys() == at_width.keys():
            return None
        leaves: list[ParamSpec] = []
        for path, spec in known.items():
            grows = [size != double for size, double in zip(shapes[path], twice[path], strict=True)]
            scaled = [size * width if grow else size * narrow for size, grow in zip(shapes[path], grows, strict=True)]
            if [size * narrow for size in at_width[path]] != scaled or sum(grows) != len(GROWING[spec.role]):
                return None
            sizes = [size for axis, size in enumerate(shapes[path]) if axis != spec.stack_axis]
            if spec.role == "vector" and spec.fan_out != math.prod(sizes):
                return None  # copies: of experts, or more blocks of one size
            fan_in, fan_out = (
                fan * width // narrow if letter in GROWING[spec.role] else fan
                for fan, letter in ((spec.fan_in, "i"), (spec.fan_out, "o"))
            )
            shape = at_width[path]
            leaves.append(dataclasses.replace(spec, shape=shape, fan_in=fan_in, fan_out=fan_out, width=width))
        return jax.tree.unflatten(structure, leaves)

    def _extended(self, specs_at: Callable[[int, int], PyTree], width: int, depth: int) -> PyTree | None:
        """The specs of a shallow model for the parameters of a deep one, or None if they do not tell all of them."""
        if self.shallow(depth) == depth:
            return None
        shapes, treedef = flatten_shapes(self.params(width, depth))
        kinds: dict[str, list[ParamSpec]] = {}
        for spec in leaves_of(specs_at(width, self.shallow(depth))):
            kinds.setdefault(starred(spec.path), []).append(spec)
        leaves: list[ParamSpec] = []
        for path, shape in shapes.items():
            candidates = {
                dataclasses.replace(spec, path=path, shape=shape, depth=depth)
                for spec in kinds.get(starred(path), ())
                if _same(spec, shape, depth)
            }
            if len(candidates) != 1:
                return None
            leaves += candidates
        return jax.tree.unflatten(treedef, leaves)


def _same(spec: ParamSpec, shape: Sequence[int], depth: int) -> bool:
    """Whether a parameter has the shape of this one, in a model of another depth."""
    if any(absorbed.ranges and absorbed.axis == spec.stack_axis for absorbed in spec.absorbs or ()):
        return False  # the factor of each block is a range of its own
    blocks = (size * depth // spec.depth if axis == spec.stack_axis else size for axis, size in enumerate(spec.shape))
    return tuple(shape) == tuple(blocks)


def traceable(model: FrameworkModel) -> tuple[Callable[..., jax.Array], PyTree]:
    """((params, *inputs) -> logits, shapes of params), with numbers made up for the model's other arrays."""
    params, state = model.shapes[0], model.random_state
    return lambda params, *inputs: _logits(model, params, state, *inputs), params


def _logits(model: FrameworkModel, params: PyTree, state: PyTree, *inputs: Any) -> jax.Array:
    logits, after = model.run(params, state, *inputs)
    pairs = zip(model.statistics(after), model.statistics(state), strict=True)
    kept = [new is old for new, old in pairs if jnp.issubdtype(old.dtype, jnp.floating)]  # without limits and counts
    if any(kept):
        some = "" if all(kept) else f" {sum(kept)} of {len(kept)} arrays of"
        raise ForwardError(
            f"this call does not update{some} the model's batch statistics, so it is not the one of training: pass the "
            "keyword arguments of training, such as options={'train': True}, and see that the model hands them on"
        )
    return logits

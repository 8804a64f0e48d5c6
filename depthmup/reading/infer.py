"""`infer_specs`: what each parameter is, by its shapes and by what the forward pass does with it (depthmup/reading)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, cast, get_args

import jax

from depthmup.names import at_least_one, short, unknown
from depthmup.reading.blocks import Lists, stack_axis
from depthmup.reading.graph import Program, Site, paths_of, sites, traced_program, uses_of
from depthmup.reading.overrides import PLACES, Override, Unclear, match, overrides_by_path, question
from depthmup.reading.places import Pass, Places, places_of
from depthmup.reading.reading import Reading, ends, growing_axes, in_front, refuse_unplaced, unseen_by
from depthmup.reading.roles import (
    GROWING,
    Leaf,
    Roled,
    decide_readouts,
    fans,
    of_entries,
    of_shape,
    overridden,
    role_of_axes,
)
from depthmup.reading.trees import InitFn, Trees, irregular, regular_width, trees
from depthmup.rules.parameterization import Role
from depthmup.rules.specs import (
    Layout,
    Overrides,
    ParamSpec,
    Place,
    PyTree,
    SpecError,
    flatten_shapes,
    named,
    parameters_only,
    starred,
)


def infer_specs(
    init_fn: InitFn,
    apply: Callable[..., Any] | None = None,
    *inputs: Any,
    width: int,
    depth: int,
    residual: bool = True,
    layout: Layout | None = None,
    overrides: Overrides | None = None,
) -> PyTree:
    """The spec tree of `init_fn(width, depth)`: what each parameter is.

    Shapes at (w, d), (2w, d), (4w, d) and (w, 2d) tell which axes grow. The forward pass at (w, d) and (w, 2d) tells
    what it does with each axis, and which parameters are in residual branches: it is computed, with random numbers, so
    let `width` be small. (`setup` does all of this for any width.) Without `apply` shapes alone decide, and the error
    asks where they cannot.

    Args:
      init_fn: (width, depth) -> parameters, any pytree (Linen, NNX, Equinox, Haiku, dicts). Depth counts residual
        blocks; a family whose number of layers cannot double (6n + 2) takes n as its depth. Leaves that are not arrays
        of real or complex numbers are passed over: the spec tree has None there, as `eqx.filter(model,
        eqx.is_inexact_array)` has.
      apply: (width, depth, params, *inputs) -> logits.
      inputs: arrays; floating ones are replaced by random numbers.
      residual: whether the blocks are residual; a parameter that repeats with depth is then inside a branch.
      layout: "in_out" for weights (..., in, out) (Flax, Haiku), "out_in" for (out, in, ...) (Equinox, PyTorch), of the
        parameters that no product of the forward pass applies. Without `apply` it must be said.
      overrides: {glob of parameter paths: what these parameters are}; an override wins over all that shapes and the
        forward pass say. The key may also be a function that selects parameters at each depth, such as
        lambda m: m.blocks[0].up or lambda params: params["block_0"]["up"]. A role, a place, or both as "branch/ROLE".
        Places are "branch" (inside a residual branch), "stream" (outside, on the residual stream in every block) and
        "trunk" (all else). Axes may follow, one letter each: i (inputs), o (outputs), - (neither), as "hidden oi" for a
        kernel (out, in), "hidden -io" for (experts, in, out), or "oi" alone.

    Returns:
      A tree of `ParamSpec` in the structure of the parameters.

    Raises SpecError, naming all leaves that fit no role, or several, with an `overrides=` to paste; ForwardError for
    weights that repeat with depth and are in no residual addition; ValueError for bad arguments. Warns of an override
    whose role needs other axes to grow than those that do.
    """
    _check_arguments(init_fn, width, depth, layout, overrides)
    if apply is None and layout is None:
        raise ValueError(
            "infer_specs needs the forward pass, apply=(width, depth, params, *inputs) -> logits and inputs; or, for "
            'shapes alone, layout="in_out" (Flax, Haiku) or "out_in" (Equinox, PyTorch)'
        )

    def params_at(width: int, depth: int) -> PyTree:
        return jax.eval_shape(lambda: parameters_only(init_fn(width, depth)))

    rules = overrides_by_path(overrides or {}, (named(params_at(width, d)) for d in (depth, 2 * depth)))
    if apply is None:
        return inferred(init_fn, width, depth, residual, layout, rules, None)

    @functools.cache
    def program_at(depth: int) -> Program:
        return traced_program(functools.partial(apply, width, depth), params_at(width, depth), inputs)

    @functools.cache
    def sites_at(times: int) -> list[Site]:
        return sites(apply, params_at(width, times * depth), *inputs, program=program_at(times * depth))

    params = params_at(width, depth)
    shapes, wide = (flatten_shapes(of)[0] for of in (params, params_at(2 * width, depth)))
    uses = uses_of(program_at(depth), params, growing_axes(shapes, wide))
    unseen = {} if layout else uses.unseen
    reading = Reading(uses, sites_at, lambda roles: refuse_unplaced(roles, shapes, sites_at(1)), unseen)
    return inferred(init_fn, width, depth, residual, layout or uses.layout, rules, reading)


def inferred(
    init_fn: InitFn,
    width: int,
    depth: int,
    residual: bool,
    layout: Layout | None,
    overrides: Mapping[str, str],
    reading: Reading | None,
) -> PyTree:
    """`infer_specs` by a reading of the forward pass, which may be that of another width; None: by shapes alone."""
    shapes = trees(init_fn, width, depth)
    rules = match(overrides, {**shapes.base, **shapes.wide, **shapes.deep})
    settled = {name for name, rule in rules.items() if rule.role}
    shapes.check_width(width, rules, settled)
    return _Inference(shapes, width, depth, residual, layout or "in_out", rules, settled, reading).specs(init_fn)


def _check_arguments(init_fn: Any, width: Any, depth: Any, layout: Any, overrides: Any) -> None:
    if layout not in (None, *get_args(Layout)):
        raise unknown("layout", layout, get_args(Layout))
    at_least_one("width", width)
    at_least_one("depth", depth)
    if not callable(init_fn):
        raise ValueError(f"init_fn must be a function (width, depth) -> parameters, got {short(init_fn)}")
    if overrides is not None and not isinstance(overrides, Mapping):
        raise ValueError(f"overrides must be {{glob of paths: what they are}}, got {short(overrides)}")


@dataclasses.dataclass
class _Inference:
    """One call of `infer_specs`. Its questions to the user are collected for one error: names are those of the
    parameters that they are about, guesses plausible overrides for other parameters."""

    shapes: Trees
    width: int
    depth: int
    residual: bool
    layout: Layout
    rules: Mapping[str, Override]
    settled: Set[str]
    reading: Reading | None
    reasons: list[str] = dataclasses.field(default_factory=list)
    names: set[str] = dataclasses.field(default_factory=set)
    guesses: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def _sites(self) -> Sequence[Site]:
        """Those of the forward pass at this depth; none without one."""
        return self.reading.sites(1) if self.reading else ()

    def ask(self, name: str, unclear: Unclear) -> str:
        self.names.add(name)
        self.reasons.append(unclear.why)
        return unclear.guess

    def specs(self, init_fn: InitFn) -> PyTree:
        shapes = self.shapes
        of_blocks = {name: axis for name in shapes.base if (axis := self._axis_of_blocks(name)) is not None}
        places = self._places(of_blocks)
        stacks = {name: axis for name, axis in of_blocks.items() if not self._joins_outputs(name, axis)}
        leaves = {name: self._leaf(name, stacks.get(name)) for name in shapes.base}
        roled = self._roles(leaves, stacks, places)
        growing, sites = [name for name, leaf in leaves.items() if leaf.grow], self._sites
        forward_ends = ends(sites, shapes.base, growing) if self.reading else {}
        lookalikes, why = decide_readouts(
            roled, leaves, self.settled, self.layout, forward_ends, paths_of(sites, "unused")
        )
        if why:
            self.names.update(lookalikes)
            self.reasons.append(why)
        streamed = self._on_the_stream(places, roled)
        if self.reasons:
            raise self._error(init_fn, roled, places)
        specs = [
            ParamSpec(name, role, name in places.in_branches, shapes.base[name],
                      *fans(role, letters, leaves[name].shape), self.width, self.depth, stacks.get(name),
                      in_stream=name in streamed)
            for name, (role, letters) in roled.items()
        ]  # fmt: skip
        self._check_whole(specs)
        return jax.tree.unflatten(shapes.structure, specs)

    # Places

    def _axis_of_blocks(self, name: str) -> int | None:
        """The axis along which blocks are stacked in a parameter, or their outputs joined."""
        before, after = self.shapes.base[name], self.shapes.deep.get(name, self.shapes.base[name])
        if before == after or self._has_moved(name):
            return None
        try:
            return stack_axis(name, before, after, self.shapes.growing(name))
        except Unclear as error:  # Its fans change with depth: no forward pass tells a rule for that.
            if self.residual and not self.rules.get(name, Override()).place:
                guess, letters = self.ask(name, error), self._letters(name)
                changed = {letter for letter, few, many in zip(letters, before, after, strict=False) if few != many}
                # Outputs for all blocks act in these.
                self.guesses[name] = "branch" if guess == "branch" or changed == {"o"} else f"{guess}/hidden"
            return None

    def _letters(self, name: str) -> str:
        """What the forward pass says of each axis of a parameter; "" if it says nothing."""
        return self.reading.uses.axes.get(name, "") if self.reading else ""

    def _joins_outputs(self, name: str, axis: int) -> bool:
        """Whether an axis of blocks is one of a product: of the outputs for all blocks, and no stack."""
        letters = self._letters(name)
        return bool(letters) and letters[axis] != "-"

    def _has_moved(self, name: str) -> bool:
        """Whether a parameter of this shape is at twice the depth, too, only under another path.

        {"dense_4": (8, 2)}, at twice the depth {"dense_4": (8, 8), "dense_8": (8, 2)}      # True of dense_4
        """
        if not self.reading:
            return self._lists.gains(name)
        few, many = (Counter(of.values())[self.shapes.base[name]] for of in (self.shapes.base, self.shapes.deep))
        return many >= few

    @functools.cached_property
    def _lists(self) -> Lists:
        return Lists(self.shapes.base, self.shapes.deep)

    def _places(self, of_blocks: Mapping[str, int]) -> Places:
        """The places, with those of overrides."""
        branch, trunk, stream = map(self._overridden, PLACES)
        if not self.residual:
            places = Places(frozenset(), frozenset(), frozenset())
        elif self.reading:
            few = Pass(self.reading.sites(1), self.shapes.base, of_blocks)
            many = Pass(self.reading.sites(2), self.shapes.deep, of_blocks)
            places = places_of(few, many, stream)
            twins = {name for name, twin in self._twins.items() if twin in places.in_branches}
            places = places._replace(in_branches=places.in_branches | twins)
        else:
            places = self._listed(of_blocks)
        inside, between, unplaced, mixing = (paths - branch - stream - trunk for paths in places)
        return Places(inside | branch, between | stream, unplaced, mixing)

    def _overridden(self, place: Place) -> frozenset[str]:
        """The parameters that overrides put in a place."""
        return frozenset(name for name in self.shapes.base if self.rules.get(name, Override()).place == place)

    @functools.cached_property
    def _twins(self) -> dict[str, str]:
        """{path of a parameter on which the logits do not depend, as in a last block: one of its shape on which they
        do}. Their paths differ in numbers only: of these parameters the program says nothing, and names have to."""
        shapes, used = self.shapes.base, paths_of(self._sites, "acts")
        kinds = {(starred(name), shapes[name]): name for name in used}
        unused = shapes.keys() - used
        return {name: kinds[kind] for name in sorted(unused) if (kind := (starred(name), shapes[name])) in kinds}

    def _listed(self, stacks: Mapping[str, int]) -> Places:
        """The places by shapes alone."""
        inside = set(stacks)
        placed = {name for name, rule in self.rules.items() if rule.place}
        for name in [name for name in self.shapes.base if name not in inside | placed]:
            try:
                if self._lists.contain(name):
                    inside.add(name)
            except Unclear as error:
                if self.ask(name, error) == "branch":
                    inside.add(name)
        extra = self._lists.unexplained(self.rules)
        if extra:
            self.reasons.append(
                f"{extra[0]} appears at twice the depth, but none of the blocks repeats it: number the blocks' names "
                "(block_0, block_1, ...), stack them, pass residual=False if they are not residual, or say which "
                "parameters are in branches"
            )
            self.guesses |= dict.fromkeys(extra, "branch")
        return Places(frozenset(inside), frozenset(), frozenset())

    def _on_the_stream(self, places: Places, roled: Mapping[str, Roled]) -> set[str]:
        """The parameters on the stream: vectors and scalars between branches, or of what blocks add to it otherwise;
        those by which all blocks mix copies of it. Weights that repeat with depth outside the branches have no rule,
        nor have the vectors of such a layer."""
        streamed = self._overridden("stream")
        if all(roled[name].role not in ("input", "hidden") for name in places.mixing):
            streamed |= places.mixing
        acting, repeating = places.between, (places.between | places.unplaced) - streamed
        if self.reading:
            acting &= in_front(self.reading.sites(1)) | in_front(self.reading.sites(2))
        small = {name for name in repeating if roled[name].role in ("vector", "scalar", "fixed")}
        if repeating == small:
            return (small & (acting | places.unplaced)) | streamed
        if self.reading:
            self.reading.refuse({name: roled[name].role for name in repeating - (small & places.between)})
        return (small & acting) | streamed

    # Roles

    def _leaf(self, name: str, stacked: int | None) -> Leaf:
        shape, grow = self.shapes.base[name], self.shapes.growing(name)
        axes = [axis for axis in range(len(shape)) if axis != stacked]
        growing = tuple(number for number, axis in enumerate(axes) if axis in grow)
        return Leaf(name, tuple(shape[axis] for axis in axes), growing)

    def _roles(self, leaves: Mapping[str, Leaf], stacks: Mapping[str, int], places: Places) -> dict[str, Roled]:
        roled: dict[str, Roled] = {}
        scalars = places.in_branches | places.between | places.unplaced | self._behind_readouts(leaves)
        for name, leaf in leaves.items():
            rule, in_branch = self.rules.get(name, Override()), name in places.in_branches
            if rule.role or rule.axes:
                roled[name] = overridden(name, self.shapes.base[name], rule, leaf, self.layout, in_branch)
                continue
            odd = irregular(name, self.shapes.widths(name), self.width)
            try:
                roled[name] = self._role(leaf, stacks.get(name), in_branch, scalars)
                if odd is not None:
                    self.ask(name, odd)
            except Unclear as error:
                roled[name] = Roled(cast(Role, self.ask(name, odd or error)), "o" * len(leaf.shape))
        if not self.reading:
            self._tell_biases(leaves, roled, places)
        return roled

    def _role(self, leaf: Leaf, stack: int | None, in_branch: bool, scalars: Set[str]) -> Roled:
        """What the forward pass says that a parameter is, else what its shape says. stack: its stack axis. scalars: the
        parameters that are scalars if nothing of them grows."""
        if not self.reading:
            return of_shape(leaf, in_branch, self.layout)
        seen, uses = self._twins.get(leaf.path, leaf.path), self.reading.uses
        members = [axis for axis in range(len(self.shapes.base[leaf.path])) if axis != stack]
        if seen in uses.axes:
            axes = "".join(uses.axes[seen][axis] for axis in members)
            return Roled(role_of_axes(axes, leaf, in_branch), axes)
        if seen in uses.entries:
            neurons = [number for number, axis in enumerate(members) if axis in uses.entries[seen]]
            return of_entries(leaf, in_branch, seen in scalars, neurons)
        roled = of_shape(leaf, in_branch, self.layout)
        if seen in self.reading.unseen and roled.role not in ("vector", "scalar"):
            self.ask(leaf.path, Unclear(unseen_by(self.reading.unseen[seen], leaf), roled.role))
        return roled

    def _tell_biases(self, leaves: Mapping[str, Leaf], roled: dict[str, Roled], places: Places) -> None:
        """Without a forward pass: the bias of a readout has its number of outputs, other vectors of fixed size outside
        the branches stand before the readout."""
        readouts = [name for name, (role, _) in roled.items() if role == "readout"]
        outputs = Counter(fans(*roled[name], leaves[name].shape)[1] for name in readouts)
        outside = self.shapes.base.keys() - places.in_branches - self.settled
        vectors = [name for name, (role, _) in roled.items() if role == "scalar" and name in outside]
        sizes = Counter(leaves[name].shape for name in vectors)
        for name in vectors:
            shape = leaves[name].shape
            size = math.prod(shape)
            if size not in outputs and shape:
                roled[name] = Roled("fixed", roled[name].axes)
            elif sizes[shape] > max(outputs[size], 1):
                self.ask(name, Unclear(f"{name} {shape}: a readout's bias, or a vector before the readout?", "fixed"))

    def _behind_readouts(self, leaves: Mapping[str, Leaf]) -> set[str]:
        """The parameters behind which none acts that grows with width."""
        growing = {name for name, leaf in leaves.items() if leaf.grow}
        acting = (site for site in self._sites if site.kind == "acts" and site.behind.isdisjoint(growing))
        return {path for site in acting for path in site.inside}

    # Errors

    def _error(self, init_fn: InitFn, roled: Mapping[str, Roled], places: Places) -> SpecError:
        def place(name: str) -> str:
            return "branch" if name in places.in_branches else "trunk"

        guesses = {name: f"{place(name)}/{roled[name].role}" for name in roled if name in self.names} | self.guesses
        odd = [name for name in self.names if irregular(name, self.shapes.widths(name), self.width)]
        regular = regular_width(init_fn, self.width, self.depth, odd)
        more = [f"(From width {regular} on, all of these axes double.)"] if regular else []
        return question(guesses, [*self.reasons, *more], self.shapes.base.keys() | guesses.keys())

    def _check_whole(self, specs: Sequence[ParamSpec]) -> None:
        """Raises SpecError for a network that cannot be right as a whole, though each of its parameters has a role."""
        by_role = {role: [spec for spec in specs if spec.role == role] for role in GROWING}
        flat = self.residual and self.shapes.base == self.shapes.deep
        if flat and by_role["hidden"] and not any(spec.in_branch for spec in specs):
            raise SpecError(
                "no parameter changes with depth, so no parameter is in a residual branch: init_fn(width, depth) must "
                "build the model at the depth that it is given. If it does, pass residual=False if the network has no "
                "residual branches; if its blocks share their weights, whose contributions add up as depth, divide "
                "them by it in the model, h + branch(h) / depth, and pass residual=False; overrides={GLOB: 'stream'} "
                "for norms after these sums"
            )
        first = [spec.path for spec in by_role["input"] if not spec.in_branch]
        last = by_role["readout"] or [spec for spec in by_role["output"] if not spec.in_branch]
        body = by_role["hidden"] or by_role["output"]
        if self.reading or not body or not self.settled.isdisjoint(first):
            return
        if first and not last:
            raise SpecError(
                f"no parameter looks like a readout. If {first[0]} is a tied embedding, or the network has no "
                f"readout, say so: overrides={{{first[0]!r}: 'input'}}; else say which one it is: "
                "overrides={PATH: 'readout'}"
            )
        if self.layout == "out_in" and last and not by_role["input"] and last[0].path not in self.settled:
            path = last[0].path
            raise SpecError(
                f"no parameter looks like a read-in. If {path} {last[0].shape} is an embedding (vocabulary, width), "
                f"pass overrides={{{path!r}: 'input'}}; if it is the readout, overrides={{{path!r}: 'readout'}}"
            )

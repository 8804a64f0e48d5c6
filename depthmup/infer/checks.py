"""Errors of a network as a whole, although each of its parameters has a role."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from depthmup.infer import names
from depthmup.infer.overrides import Override
from depthmup.infer.roles import NEEDED, Leaf, Roles
from depthmup.parameterization import Role
from depthmup.specs import Layout, ParamSpec, SpecError


def checked_layout(layout: Layout | None, leaves: Mapping[str, Leaf], known: Collection[str]) -> Layout:
    """The layout. Raises SpecError if biases contradict it or, where the caller gave none, if names do. known: the
    parameters that need no layout."""
    assumed: Layout = layout or "in_out"
    roles, opposite = Roles(leaves, assumed), "out_in" if assumed == "in_out" else "in_out"
    inferred = {name: leaf for name, leaf in leaves.items() if name not in known}
    for name, leaf in inferred.items():
        if roles.misplaced(leaf):
            letters = roles.axes_from_bias(leaf)
            raise SpecError(
                f"{name} {leaf.shape}: its bias has the size of what is its input in the layout {assumed!r}. Pass "
                f'layout={opposite!r} ("out_in" is that of Equinox and PyTorch), or '
                f"overrides={{{name!r}: {letters!r}}} if it is this parameter alone"
            )
    if layout is not None:
        return layout
    matrices = [leaf for leaf in inferred.values() if leaf.grow and sum(size > 1 for size in leaf.shape) > 1]
    weights = [leaf for leaf in matrices if names.is_weight(leaf.path)]
    if weights and not any((roles.axes_from_bias(leaf) or "").startswith("i") for leaf in weights):
        raise SpecError(
            f"{weights[0].path} {weights[0].shape}: weights of this name are (out, in) in Equinox and PyTorch. Pass "
            "layout='out_in', or layout='in_out' if they are (in, out) here"
        )
    single = [leaf for leaf in matrices if len(leaf.grow) == 1 and len(leaf.sizes) == 2]
    readouts = [leaf for leaf in single if leaf.grow == (0,) and names.is_first(leaf.path)]
    inputs = [leaf for leaf in single if leaf.grow == (1,) and names.is_last(leaf.path)]
    if readouts and inputs:
        raise SpecError(
            f"{readouts[0].path} {readouts[0].shape} looks like a readout and {inputs[0].path} {inputs[0].shape} like "
            "a read-in: pass layout='out_in' for weights (out, in), or layout='in_out' if they are (in, out)"
        )
    return assumed


def check_whole(
    specs: list[ParamSpec],
    settled: set[str],
    rules: Mapping[str, Override],
    flat: bool,
    layout: Layout,
    ends: Callable[[], Mapping[str, Role]] | None,
) -> None:
    """Raises SpecError for a network that cannot be right as a whole. flat: it should be residual, but no shape changes
    with depth. settled: the parameters whose role the user gave. ends: () -> {path: role}, of `infer_specs`."""
    by_role = {role: [s for s in specs if s.role == role] for role in NEEDED}
    if flat and by_role["hidden"] and not any(s.in_branch for s in specs):
        raise SpecError(
            "no parameter changes with depth, so no parameter is in a residual branch: init_fn(width, depth) must "
            "build the model at the depth that it is given. If it does, pass residual=False if the network has no "
            "residual branches; if its blocks share their weights, whose contributions add up as depth, divide them by "
            "it in the model, h + branch(h) / depth, and pass residual=False; overrides={GLOB: 'stream'} for norms "
            "after these sums"
        )
    inputs, readouts = by_role["input"], by_role["readout"]
    body = by_role["hidden"] or by_role["output"]
    outside = [s for s in inputs if not s.in_branch]
    if body and outside and not readouts:
        tied = any(names.is_embedding(s.path) or s.path in settled for s in outside) or ends is not None
        if not tied and not any(rule.role == "output" and rule.place != "branch" for rule in rules.values()):
            raise SpecError(
                f"no parameter looks like a readout. If {outside[0].path} is a tied embedding, or the network has no "
                f"readout, say so: overrides={{{outside[0].path!r}: 'input'}}; else say which one it is: "
                "overrides={PATH: 'readout'}"
            )
    if layout == "out_in" and body and not inputs and readouts and readouts[0].path not in settled:
        path = readouts[0].path
        if ends is not None and ends().get(path) == "readout":
            return
        raise SpecError(
            f"no parameter looks like a read-in. If {path} {readouts[0].shape} is an embedding (vocabulary, width), "
            f"pass overrides={{{path!r}: 'input'}}; if it is the readout, overrides={{{path!r}: 'readout'}}"
        )

"""What a forward pass says of the parameters, as `infer_specs` asks for it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from depthmup.reading.graph import ForwardError, Site, Uses, last_matrices, paths_of, union
from depthmup.reading.graph.axes import Axis
from depthmup.reading.roles import Leaf
from depthmup.rules.parameterization import Role
from depthmup.rules.specs import Shape, globs, starred


@dataclasses.dataclass(frozen=True)
class Reading:
    """What the forward pass says of the parameters.

    uses: of each axis. sites: (depth multiplied by) -> the sites of the forward pass.
    refuse: ({path: role} of what repeats with depth and is in no branch) -> None; raises ForwardError if these
      parameters need a rule.
    unseen: `Uses.unseen`, unless the user says how matrices are stored.
    """

    uses: Uses
    sites: Callable[[int], Sequence[Site]]
    refuse: Callable[[Mapping[str, Role]], None]
    unseen: Mapping[str, str]


def growing_axes(narrow: Mapping[str, Shape], wide: Mapping[str, Shape]) -> frozenset[Axis]:
    """The axes of parameters that differ between two widths."""
    return frozenset(
        (path, axis)
        for path in narrow.keys() & wide.keys()
        for axis, (size, twice) in enumerate(zip(narrow[path], wide[path], strict=False))
        if size != twice
    )


def ends(sites: Sequence[Site], paths: Collection[str], growing: Collection[str]) -> dict[str, Role]:
    """{path: role} of the parameters at the ends of the network, as the forward pass shows them: readouts store the
    output factor, read-ins are no weights of a product. A projection behind which all layers have a fixed size is a
    readout. A projection that a norm follows, as in front of a cosine, is an output, which keeps its size and needs no
    factor. A table that is normalized itself is an embedding. What the logits do not depend on is missing.

    growing: the parameters of which an axis grows with width."""
    heads = [site for site in sites if site.kind == "output"]
    weights = union(site.weights for site in heads) | paths_of(sites, "unused")
    roles: dict[str, Role] = {path: "input" for path in paths if path not in weights}
    roles |= {path: "readout" for site in heads for path in site.parts or () if path in weights}
    roles |= dict.fromkeys(last_matrices(sites, growing), "readout")
    roles |= {path: "output" for site in heads for path in site.normalized}
    return roles | dict.fromkeys(paths_of(sites, "cosine"), "input")


def unseen_by(operation: str, leaf: Leaf) -> str:
    """The question about a weight whose use the forward pass does not show."""
    return (
        f"{leaf.path} {leaf.shape}: what {operation} makes of it is not seen: say its role, or layout='in_out' or "
        "'out_in' for all of them"
    )


def refuse_unplaced(
    roles: Mapping[str, Role], names: Collection[str], sites: Sequence[Site], vectors_too: bool = True
) -> None:
    """Raises ForwardError for parameters that repeat with depth and are in no residual addition.

    roles: {path: role} of these parameters. names: the paths of all parameters. vectors_too: without it only for
    weights whose results are added to another activation than the one that they are computed from: such a sum is a
    residual one (reversible networks) or not (recurrent ones).
    """
    if vectors_too:
        raise ForwardError(in_no_branch(roles, names, sites))
    sums = {path for site in sites if site.kind == "sum" or site.is_closed for path in site.inside}
    weights = {path for path, role in roles.items() if role not in ("vector", "scalar")}
    unclear = dict.fromkeys(sorted(sums & weights), "branch")
    if unclear:
        raise ForwardError(
            f"parameters such as {starred(min(unclear))} repeat with depth, but the forward pass has no h + branch(h) "
            "with them: what they give is added to another activation, or cannot be seen (while, cond). If they are in "
            f"residual branches, pass overrides={globs(unclear, names)} to setup; if not, 'trunk' for 'branch' there"
        )


def in_no_branch(paths: Collection[str], names: Collection[str], sites: Sequence[Site]) -> str:
    """The question about parameters (paths) that repeat with depth and are in no branch. names: the paths of all."""
    branches = [site for site in sites if site.kind == "branch"]
    if not branches:
        return (
            f"parameters such as {starred(min(paths))} repeat with depth, but none of them is in a residual addition "
            "h + branch(h) of the forward pass. Pass residual=False if the network has no residual branches; if the "
            "skip is another than h, multiply the branch in the model, skip + factors.branch * branch(h)"
        )
    computed = Counter(site.like for site in sites if site.kind == "acts" for _ in range(site.steps))
    acting_once = (site.inside for site in sites if computed[site.like] == 1)  # nothing follows the only block
    stream = in_front(sites).union(*acting_once)
    overrides = globs({path: "stream" if path in stream else "trunk" for path in sorted(paths)}, names)
    return (
        "these parameters repeat with depth, but in the forward pass they are in no residual branch; if that is right, "
        f"pass overrides={overrides} to setup or infer_specs, with 'trunk' for what does not act on the stream"
    )


def in_front(sites: Sequence[Site]) -> set[str]:
    """The parameters that act on the stream in front of a residual branch, and those that act as one of these does:
    nothing follows the last block.

        norm_1(h + f(h)), norm_2(h + g(h)), logits = h @ head       # {norm_1, norm_2}
    """
    inside, acts = paths_of(sites, "branch"), [site for site in sites if site.kind == "acts"]
    alike = {site.like for site in acts if site.behind & inside}
    return {path for site in acts if site.like in alike for path in site.inside}

"""What `setup` warns of: where a model contradicts its parameterization, and what to do about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from depthmup.reading.audit import Init, InitAudit
from depthmup.reading.forward import check_readout
from depthmup.reading.frameworks import as_returned
from depthmup.reading.gain import GainAudit
from depthmup.reading.graph import ForwardError, Graph, Site, paths_of, products, union
from depthmup.reading.graph.axes import Axis
from depthmup.reading.overrides import match
from depthmup.reading.size_constants import Change, Constant, changes, trends
from depthmup.reading.source import Source, traceable
from depthmup.reading.trees import fixed_part
from depthmup.rules.parameterization import ForwardFactors, Kind, Parameterization
from depthmup.rules.specs import (
    PyTree,
    axis_names,
    flatten_shapes,
    globs,
    leaves_of,
    one_glob,
    parameters_only,
    starred,
)

# How the best learning rate of a residual network went with depth where all layers of a branch start with 1/sqrt(K), or
# the last one (docs/results.md, figure 2b, by accuracy).
MEASURED = {"all": "depth^-0.07 [-0.18, +0.03]", "last": "depth^-1.22 [-1.59, -0.86]"}
ROOTS = (0.5, 0.25, -0.25, -0.5)  # powers of the heads' size that multiply queries, keys or their product
# How a model that takes factors uses them.
USES: dict[Kind, str] = {
    "branch": "h + factors.branch * branch(h)",
    "output": "factors.output * logits",
    "attention": "softmax(factors.attention * q k), without 1/sqrt(head_dim)",
}


def setup_warnings(source: Source, width: int, depth: int) -> list[str]:
    """A text for each thing that `setup` warns of. Raises ForwardError for a model that cannot take its factors."""
    p, small = source.p, source.traced_shape(width, depth)
    base = p.base_or(width, depth)
    takes_factors = source.model(width, depth).factors is not None
    shallow = width, small[1]  # of this width the program is there already
    texts = [_branches(p, source.specs(width, depth)) if source.deepens(*small) else "", *_constants(source, *shallow)]
    if p.alpha is not None and (source.depth_in_init or not takes_factors):
        texts.append(_depth(source, *small))
    if p.kinds and not takes_factors:
        texts += [_unused(source, *small), _bilinear(source, *shallow), _readouts(source, *shallow)]
        texts += _unseen(source, *small)
    if not takes_factors:
        texts += [_skips(source, *small), _fading(source, *small), _again(source, *small)]
    if source.depth_in_init:
        texts.append(_layers(p, source.roles(*small), source.sites(*small)))
    if p.table.width:
        texts += [_joined(source, *small), *_names(source, *small)]
    if takes_factors:
        texts.append(_factors(source, *base))
    if source.fan_in_init is None:
        texts.append(_init(source.audit(*base)))
        if source.depth_in_init:
            texts.append(_gain(source, *small))
    return [text for text in texts if text]


def _branches(p: Parameterization, specs: PyTree) -> str:
    leaves = leaves_of(specs)
    if any(spec.in_branch for spec in leaves):
        return ""
    if p.arithmetic_mean and p.beta0 != 1:
        return f"beta0={p.beta0:g} multiplies residual branches, but no parameter is in one: it changes nothing"
    if p.alpha is not None and not p.arithmetic_mean:
        return (
            f"{p.name} with alpha={p.alpha:g} scales residual branches with depth, but no parameter is in one: depth "
            "changes nothing. A network without residual branches has no depth rule here: take 'mup'; else say which "
            "parameters are in branches, overrides={GLOB: 'branch'}"
        )
    return ""


def _depth(source: Source, width: int, depth: int) -> str:
    """Where the residual additions at two depths have another ratio than the blocks that depth is said to count."""
    if not any(spec.in_branch for spec in leaves_of(source.roles(width, depth))):
        return ""
    small, large = depth, 2 * depth
    few, many = source.additions(width, small), source.additions(width, large)
    a, b = source.p.count_blocks(small), source.p.count_blocks(large)
    slope = (many - few) / (large - small)
    is_proportional = few * b == many * a
    # The output may not depend on some updates of the last block, as of keys that nothing reads: then each depth lacks
    # as many additions, fewer than a block has.
    lacking = slope * small - few
    last_block_is_cut = a == small and slope % 1 == 0 and 0 < lacking < slope
    if not few * many or is_proportional or last_block_is_cut:
        return ""
    line = f"{slope:g} * depth {few - slope * small:+g}".replace(" +", " + ").replace(" -", " - ")
    return (
        f"depth {small} and {large} are said to be {a} and {b} residual blocks, but the forward pass has {few} and "
        f"{many} residual additions: the rule of depth takes m_L = {b / a:.4g} for what is {many / few:.4g}. Pass "
        f"blocks=, the number of blocks at a depth; blocks=lambda depth: {line} counts the additions at these two"
    )


def _constants(source: Source, width: int, depth: int) -> list[str]:
    """A text for each number of the forward pass that changes with the size of the model. Roots of at most half the
    width count as those of heads, whose product of queries and keys may have no softmax, or be a sum of two. What
    blocks that share their weights add is divided by the depth."""
    p, texts = source.p, []

    def numbers(width: int, depth: int) -> list[Constant]:
        return [constant for constant in source.numbers(width, depth) if not constant.normalized]

    def text(change: Change, axis: Literal["width", "depth"], size: int, larger: int) -> str:
        before, after, names = f"{change.before:.4g}", f"{change.after:.4g}", ", ".join(sorted(change.behind))
        return (
            f"the forward pass multiplies what is behind {names} by {before} at {axis} {size} and by {after} at {axis} "
            f"{larger}; the factors of {p.name} come on top. Write one number for every {axis}, such as {before}"
        )

    narrow, wide = source.widths(width, depth)
    small = numbers(narrow, depth)
    changed = changes(small, numbers(wide, depth)) if p.table.width else []
    sites = source.attentions(width, depth) if changed else []
    heads = {(site.head_dim, source.growth(site, width, depth)) for site in sites}
    for change in changed:
        of_heads = any(change.size(power, growth) == head for head, growth in heads for power in (-1, *ROOTS))
        roots = (change.size(power, wide / narrow) for power in ROOTS)
        if not of_heads and not any(size and 2 * size <= narrow for size in roots):
            texts.append(text(change, "width", narrow, wide))
    if p.alpha is None or not source.deepens(narrow, depth):
        return texts
    texts += [text(change, "depth", depth, 2 * depth) for change in changes(small, numbers(narrow, 2 * depth))]
    for kind, power in trends(source.numbers(narrow, depth), source.numbers(narrow, 2 * depth), depth).items():
        texts.append(
            f"the forward pass multiplies what is behind {kind} by the power {power:g} of the block's number, a rule "
            f"of depth on top of that of {p.name}: multiply it by (depth / {depth}) ** {-power:g}, too; depth {depth} "
            f"stays as it is"
        )
    return texts


def _unused(source: Source, width: int, depth: int) -> str:
    """Weights on which the logits do not depend, outside the blocks: shapes alone cannot tell read-ins and outputs.
    (In the last block something often acts on nothing.)"""
    unused = paths_of(source.sites(width, depth), "unused")
    weights = ("input", "hidden", "output", "readout")
    leaves = leaves_of(source.roles(width, depth))
    used = {starred(spec.path) for spec in leaves if spec.path not in unused}  # as in all blocks but the last
    paths = {spec.path for spec in leaves if spec.path in unused and spec.role in weights and not spec.in_branch}
    paths = {path for path in paths if starred(path) not in used}
    returned = source.output is as_returned
    if not paths or (returned and not source.model(width, depth).sows()):
        return ""
    start = "what the model returns does not depend on" if returned else "what output= returns does not depend on"
    return (
        f"{start} {', '.join(sorted(set(map(starred, paths))))}, so that their roles "
        "come from shapes alone: return everything that the loss looks at, also what is sown, with output=, or check "
        "them with explain()"
    )


def _bilinear(source: Source, width: int, depth: int) -> str:
    """Products of activations that sum over more terms at larger widths, and to which no weights are proportional."""
    if "attention" not in source.p.kinds:
        return ""
    powers = source.attention_powers(width, depth)
    sites = [site for site in source.sites(width, depth) if site.kind == "bilinear" and powers[site.product] != 1]
    if not sites:
        return ""
    names = ", ".join(sorted({starred(path) for site in sites for path in site.inside}))
    return (
        f"products of activations made by {names} sum over more terms at larger widths, {sites[0].head_dim} at "
        f"width {width}, and no factor can be stored before them: divide them by the number of terms"
    )


def _readouts(source: Source, width: int, depth: int) -> str:
    """Parameters that overrides call readouts, but that do not store the output factor."""
    leaves = leaves_of(source.specs(width, depth))
    rules = match(source.rules(width, depth), [spec.path for spec in leaves])
    named = [spec for spec in leaves if spec.path in rules and rules[spec.path].role == "readout"]
    paths = {spec.path for spec in named if all(absorbed.kind != "output" for absorbed in spec.absorbs or ())}
    if not paths or "output" not in source.p.kinds:
        return ""
    return (
        f"overrides call {', '.join(sorted(map(starred, paths)))} a readout, but the output factor has no place in it, "
        "as where the network reads its logits on: multiply these logits in the model, by factors.output"
    )


def _joined(source: Source, width: int, depth: int) -> str:
    """Axes that join a part of fixed size to one that grows: one rule of width does not hold for both."""
    trees = [source.shapes(k * width, depth) for k in (1, 2, 4)]
    overridden = match(source.rules(width, depth), trees[0])
    parts: dict[str, str] = {}
    for path in trees[0].keys() & trees[1].keys() & trees[2].keys():
        if path in overridden:
            continue
        for axis, sizes in enumerate(zip(*(tree[path] for tree in trees), strict=False)):
            if part := fixed_part(*sizes):
                parts[path] = f"axis {axis} is {part} + {sizes[0] - part} at width {width}"
    if not parts:
        return ""
    path = min(parts)
    rows = {spec.path: spec for spec in leaves_of(source.roles(width, depth)) if spec.path in parts}
    silent = {path: f"{'branch' if spec.in_branch else 'trunk'}/{spec.role}" for path, spec in rows.items()}
    return (
        f"{starred(path)} joins a part of fixed size to one that grows with width ({parts[path]}), and all of it "
        "follows the rule of the one that grows. A fixed part of the inputs then counts and learns less as the width "
        "grows, one of the outputs learns too fast under SGD and Muon: give it a layer of its own. "
        f"overrides={globs(silent, trees[0])} silences this"
    )


def _names(source: Source, width: int, depth: int) -> list[str]:
    """A text for each name of axes that the model declares and that its forward pass contradicts, but for parameters
    with an override: axes of one name grow alike, and a product sums over axes of one name."""
    names = axis_names(source.params(width, depth))
    if not any(names.values()):
        return []
    growing, settled = source.growing(width, depth), match(source.rules(width, depth), names).keys()
    axes = {(path, axis): name for path, of in names.items() if path not in settled for axis, name in enumerate(of)}
    kinds: dict[Any, dict[bool, Axis]] = {}
    for axis, name in axes.items():
        kinds.setdefault(name, {}).setdefault(axis in growing, axis)
    texts = [
        f"the axes {name!r} of {kind[True][0]} and of {kind[False][0]} have one name, only the first grows with width"
        for name, kind in kinds.items()
        if name is not None and len(kind) == 2
    ]
    summed = {
        (starred(one[0]), axes[one], starred(other[0]), axes[other])
        for one, other in source.uses(width, depth).meetings
        if None not in (axes.get(one), axes.get(other)) and axes[one] != axes[other]
    }
    texts += [
        f"the forward pass sums over the axis {name!r} of {path} and the axis {other!r} of {after} together, which are "
        "one axis of two names"
        for path, name, after, other in sorted(summed, key=repr)
    ]
    return [f"{text}: correct the names that the model declares" for text in texts]


def _skips(source: Source, width: int, depth: int) -> str:
    """Projections in all skips: no rule of depth is known for them but for hyper-connections, whose mixing acts on the
    stream (docs/rules.md, section 0)."""
    branches = source.branches(width, depth)
    streamed = {spec.path for spec in leaves_of(source.roles(width, depth)) if spec.in_stream}
    if not branches or not all(site.skip - streamed for site in branches):
        return ""
    names = ", ".join(sorted({starred(path) for site in branches for path in site.skip}))
    return (
        f"the skip of every block goes through weights ({names}), for which no rule of depth is known: they are scaled "
        "as weights outside the blocks. Compare depths by m.check and m.sweep before you trust a learning rate"
    )


def _fading(source: Source, width: int, depth: int) -> str:
    """A stream that is multiplied by a number in every block, as in score networks: no rule of depth is known."""
    numbers = {round(site.multiplier, 4) for site in source.branches(width, depth) if site.times}
    if not numbers or 1.0 in numbers or source.p.alpha is None:
        return ""
    return (
        f"every block multiplies the residual stream by {', '.join(map(str, sorted(numbers)))}, so that earlier blocks "
        "fade or grow. No rule of depth is known for that: leave the number out, or compare depths by m.check and "
        "m.sweep before you trust a learning rate"
    )


def _again(source: Source, width: int, depth: int) -> str:
    """Earlier states that every block adds to the stream again: such copies add up, branches almost cancel."""
    if source.p.alpha is None:
        return ""
    few, many = ([site for site in source.sites(width, d) if site.kind == "again"] for d in (depth, 2 * depth))
    if sum(site.times for site in many) <= sum(site.times for site in few):
        return ""
    params, _ = source.model(width, 2 * depth).init_eagerly(jax.random.key(0))
    starts = dict(zip(flatten_shapes(params)[0], jax.tree.leaves(parameters_only(params)), strict=True))
    copies = [site.inside for site in many if not site.inside or any(np.any(starts[path]) for path in site.inside)]
    if not copies:
        return ""
    paths = union(copies)
    times = f", times {', '.join(sorted(set(map(starred, paths))))}" if paths else ""
    return (
        f"blocks add earlier states of the residual stream to it again{times}. Such copies add up, so that the stream "
        "grows with depth: multiply them by numbers that start at 0, or at a constant divided by depth"
    )


def _unseen(source: Source, width: int, depth: int) -> list[str]:
    """A text for each operation that is not JAX's own, such as a kernel or a callback: of what it makes of parameters,
    and of what may be an attention."""
    texts, settled = [], match(source.rules(width, depth), source.shapes(width, depth)).keys()
    sites = [site for site in source.sites(width, depth) if site.kind == "unseen"]
    for operation in dict.fromkeys(site.where for site in sites):
        of_calls = [site.inside for site in sites if site.where == operation]
        names = sorted(set(map(starred, union(of_calls) - settled)))
        if names:
            texts.append(
                f"what {operation} makes of {', '.join(names)} is not seen, so shapes alone say what these "
                "are: look at explain(), and correct them by overrides={GLOB: ROLE}"
                + (", or set up on a mesh of one device" if operation == "shard_map" else "")
            )
        if "attention" in source.p.kinds and not all(of_calls):
            texts.append(
                f"what {operation} makes of activations is not seen: if it is an attention whose heads grow with "
                "width, its logits lack their factor. Let the model take factors, and hand it factors.attention in the "
                "place of 1/sqrt(head_dim)"
            )
    return texts


def _layers(p: Parameterization, specs: PyTree, sites: Sequence[Site]) -> str:
    """AM-muP's power of depth is not that of branches in which two layers or more start with 1/K^alpha."""
    if p.lr_depth != p.table.lr_depth:
        return ""
    leaves = leaves_of(specs)
    scaled = {spec.path for spec in leaves if p.scales_init(spec.role, spec.in_branch, spec.path)}
    layers = [[layer & scaled for layer in site.layers if layer & scaled] for site in sites]
    most = max(layers, key=len, default=[])
    if len(most) < 2:
        return ""
    last = one_glob({path for branch in layers if branch for path in branch[-1]}, scaled)
    names = ", ".join(sorted({starred(path) for layer in most for path in layer}))
    return (
        f"{len(most)} layers of a branch ({names}) start with 1/K^{p.alpha:g} each, K the number of blocks. The best "
        f"learning rate of such networks was measured to go as {MEASURED['all']}, not as depth^{p.lr_depth:g}: pass "
        "lr_depth=0"
        + (f"; or branch_init={last!r}, the last layer alone, with {MEASURED['last']}" if last else "")
        + " (trained optima of convolutional networks with 95% intervals, docs/results.md, figure 2b)"
    )


def _factors(source: Source, width: int, depth: int) -> str:
    """Double each factor of a model that takes them, with random numbers for its parameters: the logits must change."""
    p, specs, model = source.p, source.roles(width, depth), source.model(width, depth)

    def graph(**doubled: float) -> Graph:
        factors = ForwardFactors(1.0, 1.0, 1.0)._replace(**doubled)
        return Graph(*traceable(dataclasses.replace(model, factors=factors)), model.inputs)

    def acts(kind: Kind) -> bool:
        return not np.array_equal(graph(**{kind: 2.0}).output.value, plain.output.value)

    plain = graph()
    attends = any(products.attentions(plain))
    if attends and source.head_dim(width, depth) is None and acts("attention"):
        raise ForwardError(
            "the model uses factors.attention, and its heads have several sizes: leave the factor out, divide by "
            "sqrt(head_dim), or give the model an attribute head_dim, the size that counts"
        )
    if "output" in p.kinds:
        for _, parts in products.readouts(plain):
            check_readout(specs, parts or ())
    branches = any(spec.in_branch for spec in leaves_of(specs))
    present = {"branch": branches, "output": True, "attention": attends}
    ignored = [kind for kind in p.kinds if present[kind] and not acts(kind)]
    if ignored:
        return "the model takes factors, but does not use " + " and ".join(
            f"factors.{kind} (as in {USES[kind]})" for kind in ignored
        )
    return ""


def _init(audit: InitAudit) -> str:
    """One line for the parameters of all blocks, with the numbers of the one that is off by most."""
    worst: dict[tuple[str, str], Init] = {}
    for row in sorted(audit.rows, key=lambda row: abs(row.width - row.needed) + abs(row.depth)):
        if not row.ok:
            worst[starred(row.path), row.role] = row
    width, depth = audit.anchor
    off = [
        f"{path} ({role}): starts at {row.values[0]:.4g} at width {width} and depth {depth}, at {row.values[1]:.4g} at "
        f"width {2 * width}, at {row.values[2]:.4g} at depth {2 * depth}, needed one number"
        if row.values
        else f"{path} ({role}): std ~ width^{row.width:.2f} depth^{row.depth:.2f}, needed width^{row.needed:g}"
        for (path, role), row in worst.items()
    ]
    if off:
        return (
            "the model's initializers do not scale with width and depth as the parameterization assumes. "
            "fan_in_init=True makes `init` scale them so; fan_in_init=False silences this.\n  " + "\n  ".join(off)
        )
    return ""


def _gain(source: Source, width: int, depth: int) -> str:
    """AM-muP's L^-3/2 is for layers without a skip that keep the size of their inputs."""
    leaves = leaves_of(source.roles(width, depth))
    plain = {spec.path for spec in leaves if spec.role == "hidden" and not spec.in_branch}
    if not plain:
        return ""
    audit = GainAudit(tuple(row for row in source.gains(width, depth).rows if row.path in plain))
    if not audit.ok:
        return (
            "hidden layers outside residual branches do not start with He's variance 1 / (q fan_in), q = <phi(z)^2> of "
            "the activation before them: the signal falls or grows with every layer, and am_mup's law does not hold. "
            f"Give them that init, such as he_normal() behind a ReLU; fan_in_init=False silences this.\n{audit}"
        )
    return ""

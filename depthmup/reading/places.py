"""Where parameters act: in residual branches, on the stream in every block, or outside: passes at two depths tell.

What more depth adds to a program repeats with depth. Branches are alike where they compute the same, parameters where
they have one shape and the operations around them are the same. No name is read.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from depthmup.reading.graph import Site, union
from depthmup.rules.specs import Shape, starred


@dataclasses.dataclass(frozen=True)
class Pass:
    """A forward pass at one depth.

    shapes: of its parameters. stacks: {path: the axis along which blocks are stacked}.
    """

    sites: Sequence[Site]
    shapes: Mapping[str, Shape]
    stacks: Mapping[str, int]

    @property
    def branches(self) -> list[Site]:
        return [site for site in self.sites if site.kind == "branch"]

    def shape(self, path: str) -> Shape:
        """That of one block's parameter."""
        return tuple(size for axis, size in enumerate(self.shapes[path]) if axis != self.stacks.get(path))

    def blocks(self, path: str) -> int:
        """The number of blocks whose parameters are stacked in one."""
        return self.shapes[path][self.stacks[path]] if path in self.stacks else 1


class Places(NamedTuple):
    """The places of the parameters at the smaller depth.

    in_branches: those in residual branches. between: those that act on the stream in every block. unplaced: those that
    repeat with depth and do neither. mixing: those in the skips of blocks (hyper-connections).
    """

    in_branches: frozenset[str]
    between: frozenset[str]
    unplaced: frozenset[str]
    mixing: frozenset[str] = frozenset()


class _Kind(NamedTuple):
    """What a parameter shares with those of other blocks: its shape, and {(likeness, number) of the branches that it is
    in}."""

    shape: Shape
    branches: frozenset[tuple[int, int]]


def places_of(few: Pass, many: Pass, streamed: Set[str]) -> Places:
    """The places of the parameters of a forward pass, by another one of twice its depth.

    streamed: the paths of those that overrides put on the stream, which are among what repeats.

    norm(h + layers[i]["up"] ...)  # up acts in one branch at both depths: in_branches; norm behind sums: between
    h + layers[i]["w"] @ embed(c)  # embed acts in 4 branches at depth 4, in 8 at depth 8: in none of the three
    """
    repeating = _repeating(few, many)
    kinds_few, kinds_many = (_kinds(of, _blocks(of, repeating)) for of in (few, many))
    # A parameter of its own block is in as many branches at every depth, one of all blocks in more of them.
    at_both = {kind for kind in kinds_few.values() if kind.branches}.intersection(kinds_many.values())
    stacks = {path for path in few.stacks if kinds_few[path].branches}
    inside_few, inside_many = (
        frozenset(path for path, kind in kinds.items() if kind in at_both or path in stacks)
        for kinds in (kinds_few, kinds_many)
    )
    between, unplaced = set[str](), set[str]()
    outside_few, outside_many = _outside(few, inside_few), _outside(many, inside_many)
    for kind, acts in outside_few.items():
        stacked = [site for site in acts if not site.inside.isdisjoint(few.stacks)]
        added = len(outside_many[kind]) - len(acts)  # at twice the depth, so as many as repeat at this one
        for site in stacked or _without_ends(acts, streamed)[: max(added, 0)]:
            (between if site.behind_sums else unplaced).update(site.inside)
    mixing = (site.skip for site in few.branches if _group(site) in repeating)
    return Places(inside_few, frozenset(between), frozenset(unplaced), union(mixing) - inside_few)


def _without_ends(acts: Sequence[Site], streamed: Set[str]) -> list[Site]:
    """Parameters that act alike, last those that may be one too many: in norm, block, norm, block, norm the first norm
    or the last. Overrides break this tie, then names, then what acts behind no sum."""
    kinds = Counter(starred(path) for site in acts for path in site.inside)

    def rank(site: Site) -> tuple[bool, int, bool]:
        most = max(kinds[starred(path)] for path in site.inside)
        return site.inside.isdisjoint(streamed), -most, not site.behind_sums

    return sorted(acts, key=rank)


def _kinds(of: Pass, blocks: Sequence[Site]) -> dict[str, _Kind]:
    """{path: the kind of its parameter}"""
    branches: dict[str, Counter[int]] = {path: Counter() for path in of.shapes}
    for site in blocks:
        for path in site.alone - site.skip:
            branches[path][site.like] += site.steps
    return {
        path: _Kind(
            of.shape(path), frozenset((like, math.ceil(count / of.blocks(path))) for like, count in counts.items())
        )
        for path, counts in branches.items()
    }


def _outside(of: Pass, inside: Set[str]) -> defaultdict[tuple[Shape, int], list[Site]]:
    """{what parameters outside the branches and skips share: these, in the order of the program}"""
    result = defaultdict[tuple[Shape, int], list[Site]](list)
    skips = union(site.skip for site in of.branches)
    for site in sorted((site for site in of.sites if site.kind == "acts"), key=lambda site: site.number):
        for path in site.inside - inside - skips:
            result[of.shape(path), site.like].append(site)
    return result


def _group(site: Site) -> int | str:
    """What branches share that repeat together: their likeness. Injections do in any case, and terms: with one of them
    nothing shares what it is made of."""
    return site.like if site.origin == "stream" else site.origin


def _repeating(few: Pass, many: Pass) -> frozenset[int | str]:
    """The groups of branches of which more depth adds some."""
    before, after = (Counter(_group(site) for site in of.branches for _ in range(site.steps)) for of in (few, many))
    return frozenset(group for group, count in before.items() if after[group] > count)


def _blocks(of: Pass, repeating: Set[int | str]) -> list[Site]:
    """The branches that count as blocks: those of which more depth adds some, and single ones on their stream that
    share a shape of parameters with these, or whose skip is a projection, as in entries of stages; none inside others.
    """
    repeats = {site for site in of.branches if _group(site) in repeating}
    repeats |= {site for site in of.branches if site.is_closed and not site.alone.isdisjoint(of.stacks)}
    shapes = {of.shape(path) for site in repeats for path in site.inside}
    streams = {site.stream for site in repeats if not site.is_closed}
    outer = union(site.around for site in of.branches)
    for site in of.branches if repeats else ():
        alike = site.stream in streams and any(of.shape(path) in shapes for path in site.inside)
        single = site.origin == "stream" and not site.is_closed and site.number not in outer
        if single and (alike or site.skip):
            repeats.add(site)
    numbers = {site.number for site in repeats}
    return [site for site in of.branches if site in repeats and numbers.isdisjoint(site.around)]

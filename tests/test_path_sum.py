"""Sums over all paths, and the shortest, against their enumeration and against closed forms."""

import numpy as np
import pytest

from depthmup import fit
from depthmup.models import MLP, ResidualCNN, ResidualMLP, ResNet


def lengths(edges, node, sink):
    """Of every path, one by one."""
    if node == sink:
        yield 0
    for start, end, layers in edges:
        if start == node:
            yield from (layers + rest for rest in lengths(edges, end, sink))


@pytest.mark.parametrize("seed", range(20))
def test_equals_enumeration(seed):
    """Random graphs of 7 nodes in a hidden order, with parallel edges, dead ends and edges that no path uses."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(list("abcdefg")).tolist()
    pairs = np.sort([rng.choice(7, 2, replace=False) for _ in range(14)], axis=1)
    edges = [(names[i], names[j], int(rng.integers(4))) for i, j in pairs] + [(names[0], names[6], 2)]
    expected = sum(length**3 for length in lengths(edges, names[0], names[6]))
    assert fit.path_sum(edges, names[0], names[6]) == expected > 0
    shortest = min(lengths([(i, j, max(1, layers)) for i, j, layers in edges], names[0], names[6]))
    assert fit.minimal_depth(edges, names[0], names[6]) == shortest
    shuffled = [edges[i] for i in rng.permutation(len(edges))]
    assert fit.path_sum(shuffled, names[0], names[6]) == expected


@pytest.mark.parametrize("n", range(1, 41))
def test_residual_blocks(n):
    """sum_k C(n, k) k^3 = n^2 (n + 3) 2^(n - 3) (rules.md section 4)."""
    assert fit.chain_path_sum([(0, 1)] * n) * 8 == n**2 * (n + 3) * 2**n


def test_chains():
    assert fit.chain_path_sum([(1,)] * 20) == 20**3
    assert fit.chain_path_sum([(1,), (1, 2)]) == 2**3 + 3**3
    assert fit.chain_path_sum([(1, 1)]) == 2
    assert fit.chain_path_sum([(0, 2), (1, 2), (1,)]) == 2**3 + 3**3 + 4**3 + 5**3


def test_deep_networks_are_exact():
    n = 2000
    assert fit.chain_path_sum([(0, 1)] * n) == n**2 * (n + 3) * 2 ** (n - 3)
    assert fit.chain_path_sum([(np.int32(2**30),)] * 2) == 2**93


def edges_of(stages):
    return [(i, i + 1, layers) for i, ways in enumerate(stages) for layers in ways]


@pytest.mark.parametrize(
    ("model", "depth"),
    [
        (MLP(width=8, depth=5), 5),  # layers
        (ResidualMLP(width=8, depth=5), 5),  # blocks
        (ResidualCNN(width=8, depth=5, kernels=(3, 3, 3)), 5),  # whatever is in them
        (ResNet(width=8, depth=2), 6),  # projections of the skip, too
    ],
)
def test_minimal_depth_counts_blocks(model, depth):
    """Paper B, Figure 1: each residual block counts as 1; a plain network has its number of layers."""
    assert fit.minimal_depth(edges_of(model.ways), 0, len(model.ways)) == depth == model.block_count(model.depth)


def test_minimal_depth_of_blocks_and_layers():
    """Three plain layers, and two blocks; a longer way around does not count."""
    assert fit.minimal_depth(edges_of([(3,), (0, 2), (1, 4)]), 0, 3) == 3 + 1 + 1
    assert fit.minimal_depth([*edges_of([(0, 2)] * 1000), (0, 1000, 400)], 0, 1000) == 400


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([("in", "a", 1), ("a", "b", 1), ("b", "a", 1), ("b", "out", 1)], "cycle through '[ab]'"),
        ([("in", "out", 1), ("a", "a", 1)], "cycle through 'a'"),
        ([("in", "a", 1), ("a", "out", -1)], "must not be negative, got -1 from 'a' to 'out'"),
        ([("in", "a", 1), ("b", "out", 1)], "no path leads from 'in' to 'out'"),
        ([("out", "in", 1)], "no path leads from 'in' to 'out'"),
        ([], "no path leads"),
    ],
)
def test_errors(edges, message):
    for of in (fit.path_sum, fit.minimal_depth):
        with pytest.raises(ValueError, match=message):
            of(edges, "in", "out")


def test_layers_are_whole():
    with pytest.raises(ValueError, match=r"a whole number of layers\), got .*1\.5"):
        fit.path_sum([("in", "out", 1.5)], "in", "out")

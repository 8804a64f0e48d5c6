"""Sums over all paths against their enumeration and against closed forms."""

import numpy as np
import pytest

from depthmup import fit


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
    shuffled = [edges[i] for i in rng.permutation(len(edges))]
    assert fit.path_sum(shuffled, names[0], names[6]) == expected


@pytest.mark.parametrize("n", range(1, 41))
def test_residual_blocks(n):
    """sum_k C(n, k) k^3 = n^2 (n + 3) 2^(n - 3) (rules.md section 5)."""
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


@pytest.mark.parametrize(
    ("edges", "says"),
    [
        ([("in", "a", 1), ("a", "b", 1), ("b", "a", 1), ("b", "out", 1)], "cycle through '[ab]'"),
        ([("in", "out", 1), ("a", "a", 1)], "cycle through 'a'"),
        ([("in", "a", 1), ("a", "out", -1)], "must not be negative, got -1 from 'a' to 'out'"),
        ([("in", "a", 1), ("b", "out", 1)], "no path leads from 'in' to 'out'"),
        ([("out", "in", 1)], "no path leads from 'in' to 'out'"),
        ([], "no path leads"),
    ],
)
def test_errors(edges, says):
    with pytest.raises(ValueError, match=says):
        fit.path_sum(edges, "in", "out")


def test_layers_are_whole():
    with pytest.raises(TypeError, match="float"):
        fit.path_sum([("in", "out", 1.5)], "in", "out")

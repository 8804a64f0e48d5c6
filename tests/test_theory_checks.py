"""experiments/theory_checks.py at small sizes: the numbers of docs/theory.md, in wider bands, and wrong ones do not hold."""

import numpy as np
import pytest

from experiments import theory_checks
from experiments.theory_checks import KINDS, Row, Variant, net

HIDDEN = Variant()


def test_a_row_holds_if_its_whole_interval_lies_in_the_band():
    row = Row("6", "slope", (-1.2, -0.8), -1.0, 0.1)
    assert row.holds
    assert not row._replace(half=0.3).holds
    assert not row._replace(value=-1.15).holds
    assert not row._replace(value=-0.85).holds
    assert not row._replace(value=float("nan")).holds
    assert "[-1.1, -0.9]" in str(row)
    assert str(row).endswith("yes")


def test_slopes_are_of_seeds():
    rng = np.random.default_rng(0)
    sizes = [4, 8, 16]
    held = []
    for _ in range(400):
        values = 3 * np.power(sizes, -0.7) * np.exp(0.1 * rng.normal(size=(6, 3)))
        value, half = theory_checks.slope(sizes, values)
        held.append(abs(value + 0.7) <= half)
    assert 0.91 < np.mean(held) < 0.98


@pytest.mark.parametrize("kind", KINDS)
def test_exponents_in_depth(kind):
    rows = theory_checks.mean_change_over_depth((8, 16), 128, 4, (kind,))
    assert len(rows) == (3 if kind == "depth-muP" else 5)
    for row in rows:
        assert row.value == pytest.approx(KINDS[kind][2], abs=0.45), row

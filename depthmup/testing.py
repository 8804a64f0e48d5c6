"""For the tests of your own project."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from depthmup.own_model import Setup


def assert_transfers(
    m: Setup, loss: Callable[[jax.Array, Any], jax.Array], batch: Sequence[Any], **options: Any
) -> None:
    """Fails a test of yours unless the coordinate check of a model is ok.

    Args:
      m: what `setup` returned.
      loss, batch, options: of `m.check`.

    Raises AssertionError, with the table of slopes, unless the answer is ok. Undecided is an error, too: the table says
    what would decide it.
    """
    report = m.check(loss, batch, **options)
    if not report.ok:
        raise AssertionError(f"{report.verdict}:\n{report}")

"""The pictures of docs/guide/coordinate-check.md: coordinate checks that are good, bad and undecided.

    python -m experiments.check_pictures docs/images       (ten minutes on a busy core)

One residual MLP: under depth-muP, under the standard parameterization, and under depth-muP with too few seeds to tell.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

import depthmup as dm
from depthmup.rules.parameterization import Name
from experiments.language import loss

# file: (parameterization, options of the check, the verdict to show)
CHECKS: dict[str, tuple[Name, dict[str, Any], str]] = {
    "check_good": ("depth_mup", {}, "ok"),
    "check_bad": ("sp", {}, "not ok"),
    "check_undecided": ("depth_mup", {"seeds": 2, "max_seeds": 2}, "undecided"),
}


class Net(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.Dense(2 * self.width, name=f"up_{i}")(nn.LayerNorm(name=f"norm_{i}")(h))
            h = h + nn.Dense(self.width, name=f"down_{i}")(nn.gelu(y))
        return nn.Dense(10, use_bias=False, name="head")(h)


def main() -> None:
    """The checks are of random data and have the default sizes: width 64, 128, 256 and depth 4, 8, 16, 32."""
    x, labels = jax.random.normal(jax.random.key(1), (8, 64)), jnp.arange(8)
    for file, (name, options, verdict) in CHECKS.items():
        report = dm.setup(name, Net, x, width=64, depth=4, base=(64, 4)).check(loss, (x, labels), **options)
        print(report, flush=True)
        if report.verdict != verdict:
            raise SystemExit(f"{file} is to show a check that is {verdict}, not {report.verdict}")
        report.plot(Path(sys.argv[1]) / f"{file}.png")


if __name__ == "__main__":
    main()

"""Feature kernels, and how far training moves them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def feature_kernels(states: Sequence[jax.Array]) -> jax.Array:
    """H^l = h^l h^l^T / units of every layer, (layers, examples, examples); each h^l is (examples, ...).

    docs/theory.md section 0; the positions of images and tokens count as units.
    """
    flat = [h.reshape(len(h), -1) for h in states]
    return jnp.stack([h @ h.T / h.shape[1] for h in flat])


def kernel_movement(before: jax.Array, after: jax.Array) -> jax.Array:
    """|H_after - H_before| / |H_before|, Frobenius, of every layer: (layers, P, P) twice -> (layers,)."""
    return jnp.linalg.norm(after - before, axis=(1, 2)) / jnp.linalg.norm(before, axis=(1, 2))

"""The activation functions that models and theory know by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

Activation = Callable[[jax.Array], jax.Array]
ActivationName = Literal["linear", "relu", "erf", "tanh", "gelu", "silu"]


def gelu(z: jax.Array) -> jax.Array:
    """z Phi(z), as in paper B's Appendix E. `jax.nn.gelu` computes it by erfc, which takes twice the time on a CPU."""
    return z * (0.5 + 0.5 * jax.lax.erf(z * 0.5**0.5))


ACTIVATIONS: dict[ActivationName, Activation] = {
    "linear": lambda h: h,
    "relu": jax.nn.relu,
    "erf": jax.lax.erf,
    "tanh": jnp.tanh,
    "gelu": gelu,
    "silu": jax.nn.silu,
}

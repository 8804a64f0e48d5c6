"""The residual MLP of docs/theory.md section 0."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup.parameterization import ForwardFactors

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": nn.relu,
    "tanh": jnp.tanh,
    "erf": jax.scipy.special.erf,
    "gelu": nn.gelu,
    "linear": lambda h: h,
}
fan_in_normal = nn.initializers.variance_scaling(1.0, "fan_in", "normal")


class Branch(nn.Module):
    """f(h) = W phi(norm(h)) + bias; (batch, width) -> (batch, width)."""

    activation: str
    use_bias: bool
    norm: str

    @nn.compact
    def __call__(self, h: jax.Array) -> jax.Array:
        x = nn.LayerNorm(name="norm")(h) if self.norm == "layer" else h
        x = ACTIVATIONS[self.activation](x)
        return nn.Dense(h.shape[-1], use_bias=self.use_bias, kernel_init=fan_in_normal, name="dense")(x)


class ResidualMLP(nn.Module):
    """h^0 = W_in x;  h^{l+1} = h^l + b f(h^l), l = 0..depth-1;  logits = c W_out psi(h^depth).

    docs/theory.md section 0. Weights start as N(0, 1/fan_in), biases at 0: `rescale` turns that into a
    parameterization's init.

    Attributes:
      width, depth: N, and L the number of residual branches.
      outputs: number of logits.
      activation: a name in `ACTIVATIONS`.
      use_bias: a bias in the branches, the read-in and the readout (the latter added after the output factor).
      norm: "none", or "layer" for a LayerNorm at the entry of each branch.
      readout: "phi" (psi = the activation) or "linear" (psi = identity).
      scan: blocks as one scanned block with stacked parameters `blocks/...` (compile time flat in depth), or unrolled
        as `block_0`, `block_1`, ...; the same function.

    Call: (inputs (batch, features), ForwardFactors) -> logits (batch, outputs). The last hidden state, (batch, width),
    is sown as "hidden" in the collection "features".
    """

    width: int
    depth: int
    outputs: int = 10
    activation: str = "relu"
    use_bias: bool = False
    norm: str = "none"
    readout: str = "phi"
    scan: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, factors: ForwardFactors) -> jax.Array:
        h = nn.Dense(self.width, use_bias=self.use_bias, kernel_init=fan_in_normal, name="read_in")(x)
        branch = (self.activation, self.use_bias, self.norm)
        if self.scan:

            def block(module: nn.Module, h: jax.Array) -> tuple[jax.Array, None]:
                return h + jnp.asarray(factors.branch, h.dtype) * module(h), None

            scanned = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth)
            h, _ = scanned(Branch(*branch, name="blocks"), h)
        else:
            for layer in range(self.depth):
                h = h + jnp.asarray(factors.branch, h.dtype) * Branch(*branch, name=f"block_{layer}")(h)
        self.sow("features", "hidden", h, reduce_fn=lambda _, new: new, init_fn=lambda: None)
        psi = ACTIVATIONS[self.activation](h) if self.readout == "phi" else h
        logits = nn.Dense(self.outputs, use_bias=False, kernel_init=fan_in_normal, name="readout")(psi)
        logits = jnp.asarray(factors.output, h.dtype) * logits
        if self.use_bias:
            logits = logits + self.param("readout_bias", nn.initializers.zeros, (self.outputs,))
        return logits

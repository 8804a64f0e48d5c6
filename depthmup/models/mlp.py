"""The plain and the residual MLP."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup.declare import SIZE, key
from depthmup.models.layers import (
    ACTIVATIONS,
    DTYPES,
    ActivationName,
    Model,
    NormName,
    Readout,
    fan_in_init,
    norm,
    stationary_gain,
)
from depthmup.models.stack import sow_hidden, stack, state
from depthmup.rules.parameterization import ForwardFactors


class Layer(nn.Module):
    """f(h) = W phi(norm(h)) + bias; (batch, width) -> (batch, width)."""

    activation: ActivationName
    use_bias: bool
    norm: NormName
    kernel_init: nn.initializers.Initializer
    dtype: Any

    @nn.compact
    def __call__(self, h: jax.Array) -> jax.Array:
        x = norm(h, self.norm, "norm", train=False, dtype=self.dtype)
        x = ACTIVATIONS[self.activation](x)
        dense = nn.Dense(
            h.shape[-1], use_bias=self.use_bias, kernel_init=self.kernel_init, dtype=self.dtype, name="dense"
        )
        return dense(x)


class MLP(Model):
    """z^1 = W_1 x;  z^{l+1} = W_{l+1} phi(z^l), l = 1..depth-1;  logits = c W_out phi(z^depth).

    The plain network whose learning rate goes as depth^(-3/2) (docs/theory.md section 6a; paper B, section 3.1).
    He init: variance g / fan_in with g = `stationary_gain`, 2 for ReLU.
    The first hidden layer (`read_in`) reads the input.
    """

    residual: ClassVar[bool] = False

    width: int = key(128, "N", **SIZE)
    depth: int = key(4, "L, the number of hidden layers", **SIZE)
    use_bias: bool = key(False, "biases everywhere")

    @property
    def ways(self) -> list[tuple[int, ...]]:
        return [(1,)] * self.depth

    @nn.compact
    def __call__(self, x: jax.Array, factors: ForwardFactors, train: bool = False) -> jax.Array:
        self.check(x.shape)
        dtype = DTYPES[self.dtype]
        init = fan_in_init(stationary_gain(self.activation))
        x = x.reshape(len(x), -1)
        z = nn.Dense(self.width, use_bias=self.use_bias, kernel_init=init, dtype=dtype, name="read_in")(x)
        z = state(self, z)
        z = stack(
            self,
            lambda name: Layer(self.activation, self.use_bias, "none", init, dtype, name=name),
            lambda layer, z: layer(z),
            z,
            self.depth - 1,
        )
        sow_hidden(self, z)
        return Readout(self.outputs, self.use_bias, dtype, name="readout")(self.phi(z), factors)


class ResidualMLP(Model):
    """h^0 = W_in x;  h^{l+1} = h^l + b f(h^l), l = 0..depth-1;  logits = c W_out psi(h^depth).

    docs/theory.md section 0 (paper A, equation 1).
    The readout's bias is added after the output factor. `zero_init_branch` is of paper A, Appendix M.
    """

    even_scan: ClassVar[bool] = True

    width: int = key(128, "N", **SIZE)
    depth: int = key(8, "L, the number of residual branches", **SIZE)
    use_bias: bool = key(False, "biases in the read-in, the branches and the readout")
    norm: Literal["none", "layer"] = key("none", "layer: a LayerNorm at the entry of each branch")
    readout: Literal["phi", "linear"] = key("phi", "phi: the activation acts before the readout")
    zero_init_branch: bool = key(False, "branches start at 0")

    @property
    def ways(self) -> list[tuple[int, ...]]:
        return [(0, 1)] * self.depth

    @nn.compact
    def __call__(self, x: jax.Array, factors: ForwardFactors, train: bool = False) -> jax.Array:
        self.check(x.shape)
        dtype = DTYPES[self.dtype]
        x = x.reshape(len(x), -1)
        h = nn.Dense(self.width, use_bias=self.use_bias, kernel_init=fan_in_init(), dtype=dtype, name="read_in")(x)
        h = state(self, h)
        init = fan_in_init(0 if self.zero_init_branch else 1)
        h = stack(
            self,
            lambda name: Layer(self.activation, self.use_bias, self.norm, init, dtype, name=name),
            lambda branch, h: h + jnp.asarray(factors.branch, h.dtype) * branch(h),
            h,
            self.depth,
        )
        sow_hidden(self, h)
        psi = self.phi(h) if self.readout == "phi" else h
        return Readout(self.outputs, self.use_bias, dtype, name="readout")(psi, factors)

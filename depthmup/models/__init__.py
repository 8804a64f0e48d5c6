"""Flax Linen models; each takes (inputs, ForwardFactors)."""

from depthmup.models.residual_mlp import ACTIVATIONS, ResidualMLP

MODELS = {"residual_mlp": ResidualMLP}

__all__ = ["ACTIVATIONS", "MODELS", "ResidualMLP"]

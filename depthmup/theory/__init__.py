"""The limit of infinite width and depth: kernels, NTK and training dynamics; docs/theory.md."""

from depthmup.theory.convolutional import ConvKernels, lazy_conv_kernels
from depthmup.theory.dmft_linear import linear_dmft
from depthmup.theory.dmft_monte_carlo import dmft
from depthmup.theory.equations import Dynamics
from depthmup.theory.lazy import LazyKernels, lazy_kernels
from depthmup.theory.one_step import OneStep, one_step_linear
from depthmup.theory.predictor import LazyPrediction, lazy_predictor
from depthmup.theory.problem import Problem, minibatches

__all__ = [
    "ConvKernels",
    "Dynamics",
    "LazyKernels",
    "LazyPrediction",
    "OneStep",
    "Problem",
    "dmft",
    "lazy_conv_kernels",
    "lazy_kernels",
    "lazy_predictor",
    "linear_dmft",
    "minibatches",
    "one_step_linear",
]

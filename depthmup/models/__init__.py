"""Flax Linen models, each called as model(inputs, ForwardFactors, train=False): images with channels last, or tokens.

In the docstrings, paper A is the depthwise-transfer paper, paper B the AM-muP paper (docs/theory.md), and "ours" marks
a choice of our own where the papers leave one open.
"""

from depthmup.models.cnn import CNN, ResidualCNN
from depthmup.models.families import MODELS
from depthmup.models.gpt import GPT
from depthmup.models.layers import ACTIVATIONS, Model, stationary_gain
from depthmup.models.mlp import MLP, ResidualMLP
from depthmup.models.resnet import ResNet, SimpleResNet, resnet
from depthmup.models.specs import model_specs
from depthmup.models.stack import stack_blocks, states, unstack_blocks
from depthmup.models.vit import ViT

__all__ = [
    "ACTIVATIONS",
    "CNN",
    "GPT",
    "MLP",
    "MODELS",
    "Model",
    "ResNet",
    "ResidualCNN",
    "ResidualMLP",
    "SimpleResNet",
    "ViT",
    "model_specs",
    "resnet",
    "stack_blocks",
    "states",
    "stationary_gain",
    "unstack_blocks",
]

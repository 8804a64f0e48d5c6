"""The families of models by name. A family is added by a row of the table.

Its coordinate check is that of the residual MLP, or a row of CHECKS in settings.py.
"""

from __future__ import annotations

from depthmup.models.cnn import CNN, ResidualCNN
from depthmup.models.gpt import GPT
from depthmup.models.layers import Model
from depthmup.models.mlp import MLP, ResidualMLP
from depthmup.models.resnet import ResNet, SimpleResNet
from depthmup.models.vit import ViT

MODELS: dict[str, type[Model]] = {
    "mlp": MLP,
    "residual_mlp": ResidualMLP,
    "cnn": CNN,
    "residual_cnn": ResidualCNN,
    "simple_resnet": SimpleResNet,
    "resnet": ResNet,
    "vit": ViT,
    "gpt": GPT,
}

"""Depth-muP paper, B.6: ResNets with batch norm on ImageNet, SGD.

    python -m depthmup.data.prepare imagenet2012
    python main.py --config=configs/imagenet_resnet.py --workdir=runs/imagenet_resnet
    python main.py sweep --config=configs/imagenet_resnet.py --workdir=runs/sweep

The lone training is of ResNet-18 (depth 2: 8 residual blocks).
Cost: 180,160 steps of batch 64 and 1.4e17 operations for each training; 1,710 trainings and 1.8e20 operations for the
sweep, by the arithmetic of --dry_run: 56 years at 1e11 operations a second.
Not run: the data set needs a download.
The paper (A.2): the best learning rate transfers over depth; without the branch factor
(--config.parameterization.name=mup) it transfers less well. Epochs, learning rate and base shape are our choice.
Along depth the coordinate check is ok at beta0 = 1/16 and not at 1, the paper's value, used here (docs/checks.md).
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    config = papers.paper_a("resnet", "imagenet2012", papers.IMAGENET, epochs=10.0)
    config.model.width = 64
    config.model.depth = 2
    config.model.stages = (1, 1, 1, 1)
    config.model.stem = "imagenet"
    config.parameterization.base_width = 64
    config.parameterization.base_depth = 2  # ResNet-18 itself: depth, too, is 2 for its 8 blocks
    config.data.workers = 16
    config.sweep.depths = (1, 2, 4)
    config.sweep.widths = (16, 32, 64)
    config.sweep.optimizers = ("sgd",)
    return config

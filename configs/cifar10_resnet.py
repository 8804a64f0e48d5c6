"""Depth-muP paper, Figure 2: ResNets with batch norm on CIFAR-10, SGD.

    python -m depthmup.data.prepare cifar10
    python main.py --config=configs/cifar10_resnet.py --workdir=runs/cifar10_resnet
    python main.py sweep --config=configs/cifar10_resnet.py --workdir=runs/sweep

The lone training is of ResNet-20 (6n + 2 layers, n = 3).
Cost: 14,060 steps of batch 64 and 2.3e14 operations for each training; 2,052 trainings and 1.9e18 operations for the
sweep, by the arithmetic of --dry_run: 220 days at 1e11 operations a second.
Not run: the data set needs a download. docs/results.md has smaller networks.
The paper (A.2): the best learning rate transfers over depth; without the branch factor
(--config.parameterization.name=mup) it transfers less well. Epochs, learning rate and base shape are our choice.
Along depth the coordinate check is ok at beta0 = 1/16 and not at 1, the paper's value, used here (docs/checks.md).
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.small_a("resnet", "cifar10")

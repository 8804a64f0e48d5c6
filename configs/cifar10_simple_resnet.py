"""Depth-muP paper, Figure 1: SimpleResNets on CIFAR-10, SGD.

    python -m depthmup.data.prepare cifar10
    python main.py --config=configs/cifar10_simple_resnet.py --workdir=runs/cifar10_simple_resnet
    python main.py sweep --config=configs/cifar10_simple_resnet.py --workdir=runs/sweep

Cost: 14,060 steps of batch 64 and 7.2e13 operations for each training; 2,394 trainings and 7.4e17 operations for the
sweep, by the arithmetic of --dry_run: 86 days at 1e11 operations a second.
Not run: the data set needs a download. docs/results.md has smaller networks.
The paper (A.1, A.4, B.2): the best learning rate of depth_mup moves neither with depth nor with width, that of mup
moves with depth, that of sp with both.
20 epochs are the paper's (B.1, B.8). Ours: the branch factor counts residual blocks, A.1 counts all layers
(--config.model.count=weight_layers) and no base depth; learning rate, shapes and base shape.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.small_a("simple_resnet", "cifar10")

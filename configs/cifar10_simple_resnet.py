"""The SimpleResNet of the depthwise-transfer paper (A.1) on CIFAR-10, with its augmentation (A.4).

    python -m depthmup.data.prepare cifar10
    python main.py --config=configs/cifar10_simple_resnet.py --workdir=runs/cifar10_simple_resnet
    python main.py sweep --config=configs/cifar10_simple_resnet.py --workdir=runs/sweep

Cost: 14,060 steps of batch 64; time not measured, the data set needs a download.
Expect, by the paper: the best learning rate of depth_mup does not move with depth or width.
20 epochs as in the paper's figures; learning rate and base shape are our choice.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.small_a("simple_resnet", "cifar10", papers.CIFAR, epochs=20.0)

"""ResNet-20 with batch norm (depthwise-transfer paper, A.2) on CIFAR-100.

    python -m depthmup.data.prepare cifar100
    python main.py --config=configs/cifar100_resnet.py --workdir=runs/cifar100_resnet

Cost: 14,060 steps of batch 64 and 2.3e14 operations for each training; 2,052 trainings and 1.9e18 operations for the
sweep, by the arithmetic of --dry_run: 220 days at 1e11 operations a second. Nothing was run: the data set needs a
download.
Expect the same as of configs/cifar10_resnet.py. The paper has no CIFAR-100; all values are those of CIFAR-10.
Along depth the coordinate check is ok at beta0 = 1/16 and not at 1, the paper's value, used here (docs/checks.md).
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.small_a("resnet", "cifar100", papers.CIFAR, epochs=20.0)

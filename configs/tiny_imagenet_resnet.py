"""ResNet-20 (6n + 2 layers, n = 3) with batch norm (depthwise-transfer paper, A.2) on Tiny ImageNet.

    python -m depthmup.data.prepare tiny_imagenet
    python main.py --config=configs/tiny_imagenet_resnet.py --workdir=runs/tiny_imagenet_resnet
    python main.py sweep --config=configs/tiny_imagenet_resnet.py --workdir=runs/sweep

Cost: 14,060 steps of batch 64 and 9.3e14 operations for each training; 2,052 trainings and 7.6e18 operations for the
sweep, by the arithmetic of --dry_run: 2 years at 1e11 operations a second. Nothing was run: the data set needs a
download.
Expect, by the paper: the best learning rate transfers over depth; without the branch factor
(--config.parameterization.name=mup) it transfers less well. Epochs, learning rate and base shape are our choice.
Along depth the coordinate check is ok at beta0 = 1/16 and not at 1, the paper's value, used here (docs/checks.md).
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.small_a("resnet", "tiny_imagenet", papers.TINY_IMAGENET, epochs=10.0)

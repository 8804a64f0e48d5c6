"""Vision Transformer of the depthwise-transfer paper (A.3) on CIFAR-10: Adam, linear warm-up.

    python -m depthmup.data.prepare cifar10
    python main.py --config=configs/cifar10_vit.py --workdir=runs/cifar10_vit
    python main.py sweep --config=configs/cifar10_vit.py --workdir=runs/sweep

Cost: 14,060 steps of batch 64 and 6e14 operations for each training; 1,368 trainings and 1.1e18 operations for the
sweep, by the arithmetic of --dry_run: 126 days at 1e11 operations a second. Nothing was run: the data set needs a
download.
Expect, as the paper says of Tiny ImageNet: the best learning rate transfers over depth. --config.model.norm=none
trains without layer norm.
Ours: all but batch size, augmentation and Adam's rule, since the paper has no such experiment. The paper's rule has
no power of depth in Adam's learning rates; ours, with L^-1/2 in branches, is --config.parameterization.lr_depth=-0.5.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    config = papers.small_a("vit", "cifar10", papers.CIFAR, epochs=20.0)
    config.model.patch = 4
    return config

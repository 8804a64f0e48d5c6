"""Vision Transformer of the depthwise-transfer paper (A.3) on CIFAR-10, Adam.

    python -m depthmup.data.prepare cifar10
    python main.py --config=configs/cifar10_vit.py --workdir=runs/cifar10_vit
    python main.py sweep --config=configs/cifar10_vit.py --workdir=runs/sweep

Cost: 14,060 steps of batch 64; time not measured, the data set needs a download.
Expect, by the paper: the best learning rate transfers over depth, with and without layer norm.
Patch size, heads, epochs, learning rate and base shape are our choice (the paper's text has lost them).
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    config = papers.small_a("vit", "cifar10", papers.CIFAR, epochs=20.0)
    config.model.patch = 4
    return config

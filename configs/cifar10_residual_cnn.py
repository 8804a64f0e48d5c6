"""Residual convolutional networks of the AM-muP paper (4.3) on CIFAR-10: one epoch of SGD.

    python -m depthmup.data.prepare cifar10
    python main.py --config=configs/cifar10_residual_cnn.py --workdir=runs/cifar10_residual_cnn
    python main.py sweep --config=configs/cifar10_residual_cnn.py --workdir=runs/sweep

Cost: 351 steps of batch 128 for each training; time not measured, the data set needs a download.
Expect, by the paper: with --config.parameterization.lr_depth=0 the best learning rate falls like
depth^-1.435; with am_mup's own -3/2 it stays the same. Width 64 is the paper's; we chose depths and learning rate.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.paper_b("residual_cnn", "cifar10")

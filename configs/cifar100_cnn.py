"""Plain convolutional networks of the AM-muP paper (4.2) on CIFAR-100: one epoch of SGD.

    python -m depthmup.data.prepare cifar100
    python main.py --config=configs/cifar100_cnn.py --workdir=runs/cifar100_cnn
    python main.py sweep --config=configs/cifar100_cnn.py --workdir=runs/sweep

Cost: 351 steps of batch 128 for each training; time not measured, the data set needs a download.
Expect, by the paper: with --config.parameterization.lr_depth=0 the best learning rate falls like
depth^-1.5, roughly; with am_mup's own -3/2 it stays the same. Width and learning rate are our choice.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.paper_b("cnn", "cifar100")

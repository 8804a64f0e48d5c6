"""Residual convolutional networks of the AM-muP paper (4.3) on ImageNet: one epoch of SGD.

    python -m depthmup.data.prepare imagenet2012
    python main.py --config=configs/imagenet_residual_cnn.py --workdir=runs/imagenet_residual_cnn
    python main.py sweep --config=configs/imagenet_residual_cnn.py --workdir=runs/sweep

Cost: 9,008 steps of batch 128 for each training; time not measured, the data set needs a download.
Expect, by the paper: with --config.parameterization.lr_depth=0 the best learning rate falls like
depth^-1.663 (with dropout); with am_mup's own -3/2 it stays the same. Depths and learning rate are our choice.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    config = papers.paper_b("residual_cnn", "imagenet2012")
    config.data.update(papers.IMAGENET_B)
    return config

"""Plain convolutional networks with GELU of the AM-muP paper (D.1, Fig 3) on CIFAR-10: one epoch of SGD.

    python -m depthmup.data.prepare cifar10
    python main.py --config=configs/cifar10_cnn_gelu.py --workdir=runs/cifar10_cnn_gelu
    python main.py sweep --config=configs/cifar10_cnn_gelu.py --workdir=runs/sweep

Cost: 351 steps of batch 128 and 2.3e13 operations for each training; 2,520 trainings and 4.6e17 operations for the
sweep, by the arithmetic of --dry_run: 53 days at 1e11 operations a second. Nothing was run: the data set needs a
download.
Expect, by the paper: the best learning rate falls like depth^-1.38. Its init, He's variance times sqrt(2), is meant
to keep the variance over depth; in fact the variance grows (docs/models.md), which
--config.model.gelu_variance=stationary avoids.
Ours: as in configs/cifar10_cnn.py.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    config = papers.paper_b("cnn", "cifar10")
    config.model.activation = "gelu"
    config.model.gelu_variance = "paper"
    return config

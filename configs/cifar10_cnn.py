"""Plain convolutional networks of the AM-muP paper (4.2, Fig 2a) on CIFAR-10: one epoch of SGD.

    python -m depthmup.data.prepare cifar10
    python main.py --config=configs/cifar10_cnn.py --workdir=runs/cifar10_cnn
    python main.py sweep --config=configs/cifar10_cnn.py --workdir=runs/sweep

Cost: 351 steps of batch 128 and 2.3e13 operations for each training; 2,520 trainings and 4.6e17 operations for the
sweep, by the arithmetic of --dry_run: 53 days at 1e11 operations a second. Nothing was run: the data set needs a
download.
Expect, by the paper: the best learning rate falls like depth^-1.337, with zero padding (--config.model.padding=zero,
Fig 4) like the same power; in each segment two depths predict the others. So it stays about the same under am_mup's
own rule, with --config.parameterization.lr_depth=-1.5.
Ours: width 64 (the paper has 64 to 512), 3 seeds, the even depths of 22..30, the learning rate of a lone training.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.paper_b("cnn", "cifar10")

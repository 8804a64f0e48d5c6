"""Plain convolutional networks of the AM-muP paper (D.1, Fig 5) on CIFAR-100: one epoch of SGD.

    python -m depthmup.data.prepare cifar100
    python main.py --config=configs/cifar100_cnn.py --workdir=runs/cifar100_cnn
    python main.py sweep --config=configs/cifar100_cnn.py --workdir=runs/sweep

Cost: 351 steps of batch 128 and 2.3e13 operations for each training; 2,520 trainings and 4.6e17 operations for the
sweep, by the arithmetic of --dry_run: 53 days at 1e11 operations a second. Nothing was run: the data set needs a
download.
Expect, by the paper: the best learning rate falls like depth^-1.392; in each segment two depths predict the others.
Ours: as in configs/cifar10_cnn.py.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.paper_b("cnn", "cifar100")

"""Residual convolutional networks of the AM-muP paper (D.2, Fig 7c) on CIFAR-100: one epoch of SGD.

    python -m depthmup.data.prepare cifar100
    python main.py --config=configs/cifar100_residual_cnn.py --workdir=runs/cifar100_residual_cnn
    python main.py sweep --config=configs/cifar100_residual_cnn.py --workdir=runs/sweep

Cost: 351 steps of batch 128 and 9.2e13 operations for each training; 1,680 trainings and 4.4e17 operations for the
sweep, by the arithmetic of --dry_run: 50 days at 1e11 operations a second. Nothing was run: the data set needs a
download.
Expect, by the paper: the best learning rate falls like depth^-1.793; with --config.model.dropout=0.1 (Fig 6b) like
depth^-1.543, with --config.model.norm=batch (Fig 6d) like depth^-1.399, with both (Fig 7b) like depth^-1.320.
Ours: as in configs/cifar10_residual_cnn.py.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.paper_b("residual_cnn", "cifar100")

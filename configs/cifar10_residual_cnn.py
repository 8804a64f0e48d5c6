"""AM-muP paper, Figure 2b: residual CNNs on CIFAR-10, one epoch of SGD.

    python -m depthmup.data.prepare cifar10
    python main.py --config=configs/cifar10_residual_cnn.py --workdir=runs/cifar10_residual_cnn
    python main.py sweep --config=configs/cifar10_residual_cnn.py --workdir=runs/sweep

Cost: 351 steps of batch 128 and 9.2e13 operations for each training; 1,680 trainings and 4.4e17 operations for the
sweep, by the arithmetic of --dry_run: 50 days at 1e11 operations a second.
Not run: the data set needs a download. docs/results.md has smaller networks.
The paper: the best learning rate falls like depth^-1.435, and PathSum's law departs from it at large depth; with
--config.model.dropout=0.1 (Figure 6a) like depth^-1.568, with --config.model.norm=batch (6c) like depth^-1.869, with
both (7a) like depth^-1.803. On CIFAR-100 (--config.data.name=cifar100) it falls like depth^-1.793 (7c), with dropout
-1.543 (6b), batch norm -1.399 (6d), both -1.320 (7b).
The 64 channels are the paper's. Ours: the depths, with two anchors in each of two segments (the paper's are lost),
the rate of dropout, 3 seeds, the learning rate of a lone training.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.paper_b("residual_cnn", "cifar10")

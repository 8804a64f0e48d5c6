"""Residual convolutional networks with dropout of the AM-muP paper (D.3, Fig 9) on ImageNet: one epoch of SGD.

    python -m depthmup.data.prepare imagenet2012
    python main.py --config=configs/imagenet_residual_cnn.py --workdir=runs/imagenet_residual_cnn
    python main.py sweep --config=configs/imagenet_residual_cnn.py --workdir=runs/sweep

Cost: 4,504 steps of batch 256 and 8.9e15 operations for each training; 1,680 trainings and 3.7e19 operations for the
sweep, by the arithmetic of --dry_run: 12 years at 1e11 operations a second. Nothing was run: the data set needs a
download.
Expect, by the paper: the best learning rate falls like depth^-1.663; with --config.model.dropout=0 (Fig 10) like
depth^-1.567.
Ours: the rate of dropout, batch 256 ("the standard ImageNet recipe"), images of 64 pixels, crops and flips, 3 seeds,
which two segments the depths are of, the learning rate of a lone training.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    config = papers.paper_b("residual_cnn", "imagenet2012")
    config.update(papers.IMAGENET_B)
    config.model.dropout = 0.1
    return config

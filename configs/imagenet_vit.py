"""Vision Transformer of the depthwise-transfer paper (A.3) on ImageNet, Adam.

    python -m depthmup.data.prepare imagenet2012
    python main.py --config=configs/imagenet_vit.py --workdir=runs/imagenet_vit
    python main.py sweep --config=configs/imagenet_vit.py --workdir=runs/sweep

Cost: 180,160 steps of batch 64; time not measured, the data set needs a download.
Expect, by the paper: the best learning rate transfers over depth, with and without layer norm.
Patch size, heads, epochs, learning rate and base shape are our choice (the paper's text has lost them).
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    config = papers.paper_a("vit", "imagenet2012", papers.IMAGENET, epochs=10.0)
    config.model.width = 384
    config.model.depth = 12
    config.model.heads = 6
    config.model.patch = 16
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 2.0**-10
    config.sweep.depths = (3, 6, 12)
    config.sweep.widths = (192, 384)
    config.sweep.optimizers = ("adam",)
    config.data.workers = 16
    return config

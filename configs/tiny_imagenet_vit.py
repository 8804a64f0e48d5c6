"""Vision Transformer of the depthwise-transfer paper (A.3) on Tiny ImageNet, Adam.

    python -m depthmup.data.prepare tiny_imagenet
    python main.py --config=configs/tiny_imagenet_vit.py --workdir=runs/tiny_imagenet_vit
    python main.py sweep --config=configs/tiny_imagenet_vit.py --workdir=runs/sweep

Cost: 14,060 steps of batch 64; time not measured, the data set needs a download.
Expect, by the paper: the best learning rate transfers over depth, with and without layer norm.
Patch size, heads, epochs, learning rate and base shape are our choice (the paper's text has lost them).
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    config = papers.small_a("vit", "tiny_imagenet", papers.TINY_IMAGENET, epochs=10.0)
    config.model.patch = 8
    return config

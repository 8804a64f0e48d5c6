"""The SimpleResNet of the depthwise-transfer paper (A.1) on Tiny ImageNet, with its augmentation (A.4).

    python -m depthmup.data.prepare tiny_imagenet
    python main.py --config=configs/tiny_imagenet_simple_resnet.py --workdir=runs/tiny_imagenet_simple_resnet
    python main.py sweep --config=configs/tiny_imagenet_simple_resnet.py --workdir=runs/sweep

Cost: 14,060 steps of batch 64; time not measured, the data set needs a download.
Expect, by the paper: the best learning rate of depth_mup does not move with depth or width.
Epochs, learning rate and base shape are our choice.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.small_a("simple_resnet", "tiny_imagenet", papers.TINY_IMAGENET, epochs=10.0)

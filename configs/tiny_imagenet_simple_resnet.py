"""The SimpleResNet of the depthwise-transfer paper (A.1) on Tiny ImageNet, with the paper's augmentation (A.4): SGD.

    python -m depthmup.data.prepare tiny_imagenet
    python main.py --config=configs/tiny_imagenet_simple_resnet.py --workdir=runs/tiny_imagenet_simple_resnet
    python main.py sweep --config=configs/tiny_imagenet_simple_resnet.py --workdir=runs/sweep

Cost: COST_
Expect, as the paper says of CIFAR-10: the best learning rate of depth_mup moves neither with depth nor with width.
Ours: all but batch size and augmentation, since the paper has no SimpleResNet on Tiny ImageNet. The branch factor
counts residual blocks, A.1 counts all layers (--config.model.count=weight_layers).
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.small_a("simple_resnet", "tiny_imagenet", papers.TINY_IMAGENET, epochs=10.0)

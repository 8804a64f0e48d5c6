"""The SimpleResNet of the depthwise-transfer paper (A.1) on Tiny ImageNet, with the paper's augmentation (A.4): SGD.

    python -m depthmup.data.prepare tiny_imagenet
    python main.py --config=configs/tiny_imagenet_simple_resnet.py --workdir=runs/tiny_imagenet_simple_resnet
    python main.py sweep --config=configs/tiny_imagenet_simple_resnet.py --workdir=runs/sweep

Cost: 14,060 steps of batch 64 and 3e14 operations for each training; 2,394 trainings and 3.0e18 operations for the
sweep, by the arithmetic of --dry_run: 346 days at 1e11 operations a second. Nothing was run: the data set needs a
download.
Expect, as the paper says of CIFAR-10: the best learning rate of depth_mup moves neither with depth nor with width.
Ours: all but batch size and augmentation, since the paper has no SimpleResNet on Tiny ImageNet. The branch factor
counts residual blocks, A.1 counts all layers (--config.model.count=weight_layers).
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.small_a("simple_resnet", "tiny_imagenet", papers.TINY_IMAGENET, epochs=10.0)

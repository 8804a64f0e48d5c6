"""Settings that the papers' experiments share. A is the depthwise-transfer paper, B the AM-muP paper.

Where the text of paper A has lost a value, the value is our choice.
"""

from ml_collections import config_dict

from configs import default

# A, A.4: "horizontal flips, 10-degree rotations, affine transformations, color jittering"; the strength of the last two
# is our choice.
CIFAR = dict(flip=True, rotate=10.0, shear=10.0, scale=(0.8, 1.2), brightness=0.2, contrast=0.2, saturation=0.2)
# A, A.4: "crops, horizontal flips"; the range of areas is our choice, the one of Inception.
IMAGENET = dict(flip=True, crop=(0.08, 1.0))
TINY_IMAGENET = dict(flip=True, crop=(0.3, 1.0))
# Shapes and sweeps of each family, our choice.
SMALL_A = {  # images of 32 and 64 pixels
    "simple_resnet": dict(sweep=dict(depths=(3, 6, 12, 24), widths=(128, 256, 512), optimizers=("sgd",))),
    "resnet": dict(model=dict(depth=3), sweep=dict(depths=(1, 2, 3, 5), widths=(16, 32, 64), optimizers=("sgd",))),
    "vit": dict(
        model=dict(width=128, depth=8, heads=4),
        optimizer=dict(name="adam", learning_rate=2.0**-10),
        sweep=dict(depths=(2, 4, 8, 16), widths=(64, 128, 256), optimizers=("adam",)),
    ),
}
B = {
    "cnn": dict(
        model=dict(depth=3), parameterization=dict(base_depth=3), sweep=dict(depths=(3, 4, 6, 9, 12, 16, 22, 30))
    ),
    "residual_cnn": dict(
        model=dict(depth=4), parameterization=dict(base_width=64, base_depth=1), sweep=dict(depths=(2, 4, 8, 16, 32))
    ),
}
# B on ImageNet, our choice: circular convolutions of stride 1 at 224 pixels take long, and the paper names no
# augmentation.
IMAGENET_B = dict(image_size=64, augment=IMAGENET, workers=16)


def paper_a(model: str, data: str, augment: dict, epochs: float) -> config_dict.ConfigDict:
    """A config for paper A: batch 64 (A, A.4), constant learning rate (our choice)."""
    config = default.get_config(model)
    config.data.name = data
    config.data.augment.update(augment)
    config.data.batch_size = 64
    config.epochs = epochs
    config.schedule = "constant"
    config.log_every = 100
    return config


def small_a(model: str, data: str, augment: dict, epochs: float) -> config_dict.ConfigDict:
    """`paper_a` with the shapes and sweeps of SMALL_A."""
    config = paper_a(model, data, augment, epochs)
    config.update(SMALL_A[model])
    return config


def paper_b(model: str, data: str) -> config_dict.ConfigDict:
    """A config for paper B (B, 4.1): batch 128, SGD without momentum, one epoch, no augmentation, a logarithmic grid of
    learning rates."""
    config = default.get_config(model)
    config.data.name = data
    config.data.batch_size = 128
    config.parameterization.name = "am_mup"
    config.optimizer.name = "sgd"
    config.epochs = 1.0
    config.schedule = "constant"
    config.log_every = 100
    config.sweep.parameterizations = ("am_mup",)
    config.sweep.optimizers = ("sgd",)
    config.sweep.log2_learning_rates.sgd = (-13.0, 3.0)  # about 1e-4 to 1e1
    config.sweep.widths = ()
    config.update(B[model])
    return config

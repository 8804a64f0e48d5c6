"""papers:MODEL,DATA is a paper's model on a data set: papers:cnn,cifar100.

    python -m depthmup.data.prepare cifar100
    python main.py sweep --config=configs/papers.py:residual_cnn,cifar100 --workdir=runs/sweep

MODEL is resnet, simple_resnet or vit (the depth-muP paper, A) on cifar10, cifar100 or tiny_imagenet, or cnn or
residual_cnn (the AM-muP paper, B) on cifar10, cifar100 or imagenet2012. docs/results.md says which figure has which
config; main figures have a config of their own.
Cost: --dry_run says it.
Not run: the data sets need a download.

"Ours" marks a choice of our own, where a paper's text has lost a value or leaves it open.
"""

from ml_collections import config_dict

from configs import default

# A, A.4: "horizontal flips, 10-degree rotations, affine transformations, color jittering"; the strength of the last two
# is ours.
CIFAR = dict(flip=True, rotate=10.0, shear=10.0, scale=(0.8, 1.2), brightness=0.2, contrast=0.2, saturation=0.2)
# A, A.4: "crops, horizontal flips"; the range of areas is ours, the one of Inception.
IMAGENET = dict(flip=True, crop=(0.08, 1.0))
TINY_IMAGENET = dict(flip=True, crop=(0.3, 1.0))
SETS_A: dict[str, tuple[dict, float]] = {  # {data set: augmentation, epochs}
    "cifar10": (CIFAR, 20.0),
    "cifar100": (CIFAR, 20.0),
    "tiny_imagenet": (TINY_IMAGENET, 10.0),
}
# A, section 3 and A.4: Adam as in the mup package, whose learning rates have no power of depth (ours has L^-1/2 in
# branches: lr_depth unset); linear warm-up. Ours: the length of the warm-up, the learning rate.
VIT = dict(
    parameterization=dict(lr_depth=0.0),
    optimizer=dict(name="adam", learning_rate=2.0**-10),
    warmup_epochs=1.0,
    sweep=dict(parameterizations=("mup", "depth_mup"), optimizers=("adam",)),
)
# Shapes, base shapes and sweeps of each family: ours.
SMALL_A = {  # images of 32 and 64 pixels
    "simple_resnet": dict(
        parameterization=dict(base_depth=3),
        sweep=dict(depths=(3, 6, 12, 24), widths=(128, 256, 512), optimizers=("sgd",)),
    ),
    "resnet": dict(model=dict(depth=3), sweep=dict(depths=(1, 2, 3, 5), widths=(16, 32, 64), optimizers=("sgd",))),
    "vit": dict(model=dict(width=128, depth=8, heads=4), sweep=dict(depths=(2, 4, 8, 16), widths=(64, 128, 256))),
}
# B, 4.2: the anchors {3, 4}, {10, 11}, {18, 20} and the depths predicted from each pair, 5..9, 12..16 and 22..30 (the
# even ones: ours).
SEGMENTS_AB = tuple(range(3, 17))
SEGMENTS_ABC = (*SEGMENTS_AB, 18, 20, 22, 24, 26, 28, 30)
B = {
    # Ours: 64 channels; B, 3.2 has 64 to 512.
    "cnn": dict(
        model=dict(width=64, depth=3),
        parameterization=dict(base_width=64, base_depth=3),
        sweep=dict(depths=SEGMENTS_ABC),
    ),
    # B, 4.3: 64 channels. The depths, with the anchors of plain networks, are ours: those of Fig 2b are lost.
    "residual_cnn": dict(
        model=dict(depth=4), parameterization=dict(base_width=64, base_depth=1), sweep=dict(depths=SEGMENTS_AB)
    ),
}
# B, D.3: the batch size of "the standard ImageNet recipe", 256, and two segments. Ours: images of 64 pixels, since
# circular convolutions of stride 1 take long at 224, and augmentation, of which the paper says nothing.
IMAGENET_B = dict(
    data=dict(batch_size=256, image_size=64, augment=IMAGENET, workers=16), sweep=dict(depths=SEGMENTS_AB)
)
SETS_B: dict[str, dict] = {"cifar10": {}, "cifar100": {}, "imagenet2012": IMAGENET_B}


def get_config(which: str = "") -> config_dict.ConfigDict:
    """which: MODEL,DATA; it stands behind a colon, --config=papers:resnet,cifar100."""
    model, _, data = which.partition(",")
    if model in SMALL_A and data in SETS_A:
        return small_a(model, data)
    if model in B and data in SETS_B:
        return paper_b(model, data)
    raise ValueError(
        f"unknown {which!r} behind the colon of --config=papers:MODEL,DATA (known: {', '.join(SMALL_A)} on "
        f"{', '.join(SETS_A)}; {', '.join(B)} on {', '.join(SETS_B)})"
    )


def paper_a(model: str, data: str, augment: dict, epochs: float) -> config_dict.ConfigDict:
    """A config for paper A: batch 64 (A, A.4). Ours: the constant learning rate, the base shape."""
    config = default.get_config(model)
    config.data.name = data
    config.data.augment.update(augment)
    config.data.batch_size = 64
    config.epochs = epochs
    config.schedule = "constant"
    config.log_every = 100
    return config


def small_a(model: str, data: str) -> config_dict.ConfigDict:
    """`paper_a` with the shapes and sweeps of SMALL_A, and a ViT's training of VIT."""
    augment, epochs = SETS_A[data]
    config = paper_a(model, data, augment, epochs)
    if model == "vit":
        config.update(VIT)
        config.epochs = 20.0
        config.model.patch = 8 if data == "tiny_imagenet" else 4
    config.update(SMALL_A[model])
    return config


def paper_b(model: str, data: str) -> config_dict.ConfigDict:
    """A config for paper B (B, 4.1 and 4.2): batch 128, SGD without momentum, one epoch, 40 learning rates from 1e-4 to
    10, the best by validation accuracy. lr_depth is 0: the figures show how the best learning rate falls.

    Ours: 3 seeds, no augmentation, and the learning rate of a lone training.
    """
    config = default.get_config(model)
    config.data.name = data
    config.data.batch_size = 128
    config.parameterization.name = "am_mup"
    config.parameterization.lr_depth = 0.0
    config.optimizer.name = "sgd"
    config.epochs = 1.0
    config.schedule = "constant"
    config.log_every = 100
    config.sweep.parameterizations = ("am_mup",)
    config.sweep.optimizers = ("sgd",)
    config.sweep.axes = "optimizer.learning_rate = log(0.0001, 10, 40)"
    config.sweep.judge_by = "validation_accuracy"
    config.sweep.seeds = 3
    config.sweep.widths = ()
    config.update(B[model])
    config.update(SETS_B[data])
    return config

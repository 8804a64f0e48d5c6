"""Every key there is, with its meaning. Other configs override this one: they add no key.

python main.py explain --config=configs/default.py
python main.py explain --config=configs/default.py:vit        (another family of models)
"""

from ml_collections import config_dict

# The families of models and what only they have; their classes in depthmup/models say more.
FAMILIES: dict[str, dict] = dict(
    mlp=dict(  # plain
        width=128,
        depth=4,  # hidden layers
        use_bias=False,  # biases everywhere
    ),
    residual_mlp=dict(
        width=128,  # N
        depth=8,  # L, the number of residual branches
        use_bias=False,  # biases in read-in, branches and readout
        norm="none",  # none | layer: a LayerNorm at the entry of each branch
        readout="phi",  # phi: the activation acts before the readout | linear
        zero_init_branch=False,  # branches start at 0
    ),
    cnn=dict(  # plain convolutions of stride 1 (AM-muP paper, 4.2)
        width=32,  # channels
        depth=4,  # convolutions
        channels=(1.0,),  # multipliers of width, layer by layer, repeated
        kernels=(3,),  # sizes, layer by layer, repeated
        padding="circular",  # circular | zero
        gelu_variance="stationary",  # initial variance for gelu: stationary (2.352 / fan_in) | paper (2.828 / fan_in)
    ),
    residual_cnn=dict(  # residual blocks of convolutions of stride 1 (AM-muP paper, 4.3)
        width=64,  # channels
        depth=4,  # residual blocks
        kernels=(3, 3),  # sizes of the convolutions in a branch; 1 is a dense layer over channels
        bottleneck=1,  # all but the last have width / bottleneck channels
        padding="circular",  # circular | zero
        norm="none",  # none | batch: before each nonlinearity of a branch
        dropout=0.0,  # rate, between the convolutions of a branch
        gain=2.0,  # c: branch weights start with variance c / fan_in (am_mup: c / (K fan_in))
        zero_init_branch=False,
    ),
    simple_resnet=dict(  # depthwise-transfer paper, A.1
        width=128,  # channels of the last stage, 8 times those of the first
        depth=4,  # residual blocks of one convolution, 3 or more
        pool="average",  # average | max, three times
        count="blocks",  # what the branch factor counts: blocks | layers (the paper's)
        padding="zero",  # zero | circular
        norm="none",  # none | batch: after each convolution of a branch
        zero_init_branch=False,
    ),
    resnet=dict(  # of He et al. (depthwise-transfer paper, A.2)
        width=16,  # channels of the first stage
        depth=1,  # residual blocks are depth x stages
        stages=(
            1,
            1,
            1,
        ),  # (1, 1, 1): CIFAR's 6n + 2 layers | (1, 1, 1, 1): ResNet-18 at depth 2 | (3, 4, 6, 3): 34, 50
        bottleneck=False,  # blocks of 1x1, 3x3, 1x1 convolutions, as in ResNet-50
        stem="cifar",  # cifar: 3x3 convolution | imagenet: 7x7 of stride 2 and max pooling
        norm="batch",  # batch | layer (over each channel's plane) | none
        zero_init_branch=False,
    ),
    vit=dict(  # Vision Transformer (depthwise-transfer paper, A.3)
        width=64,
        depth=4,  # blocks of attention and MLP, two residual branches each
        heads=4,  # fixed: the head size grows with width
        patch=2,  # side of a patch in pixels
        mlp_ratio=4,  # hidden units of the MLP over width
        norm="layer",  # layer | none
        pool="cls",  # cls: class token | mean: of the tokens
        use_bias=True,
        zero_init_branch=False,
    ),
)
# What main.py check does where it is not as for the residual MLP: convolutions are dear. Plain networks claim nothing
# along depth.
CHECKS: dict[str, dict] = dict(
    mlp=dict(depths=()),
    cnn=dict(widths=(32, 64, 128), depths=(), depth=3, log2_learning_rates=dict(sgd=-11.0, adam=-13.0)),
    residual_cnn=dict(
        widths=(32, 64, 128),
        depths=(8, 12, 16, 32),
        width=64,
        depth=4,
        log2_learning_rates=dict(sgd=-11.0, adam=-13.0),
    ),
    simple_resnet=dict(
        widths=(128, 256, 512),
        depths=(8, 12, 16, 32),
        width=256,
        depth=4,
        log2_learning_rates=dict(sgd=-5.0, adam=-10.0),
    ),
    resnet=dict(
        widths=(16, 32, 64),
        depths=(4, 6, 8, 12),
        width=16,
        depth=1,
        beta0=1 / 16,  # behind batch norm the correction at small depth is large (docs/checks.md)
        log2_learning_rates=dict(sgd=-12.0, adam=-13.0),
    ),
    vit=dict(
        widths=(64, 128, 256),
        depths=(8, 12, 16, 32),
        width=64,
        depth=4,
        log2_learning_rates=dict(sgd=-12.0, adam=-13.0),
    ),
)


def get_config(model: str = "residual_mlp") -> config_dict.ConfigDict:
    """model: a family; give it behind a colon, --config=configs/default.py:vit."""
    if model not in FAMILIES:
        raise ValueError(f"unknown model family {model!r} behind the colon of --config (known: {', '.join(FAMILIES)})")
    config = config_dict.ConfigDict()

    config.model = dict(
        name=model,
        activation="gelu" if model == "vit" else "relu",  # relu | tanh | erf | gelu | linear
        dtype="float32",  # of the computation: float32 | bfloat16; parameters are float32
        scan=True,  # equal blocks in one scanned loop: compile time is flat in depth; False: unrolled
        **FAMILIES[model],
    )

    config.parameterization = dict(
        name="depth_mup",  # sp | ntp | mup | depth_mup | depth_ode | am_mup | completep (docs/rules.md)
        base_width=32,  # the shape at which hyperparameters are tuned; all of sp, mup, depth_mup, depth_ode equal there
        base_depth=2,
        base_head_dim=1,  # attention equals 1/sqrt(head_dim) at this head size
        alpha=config_dict.placeholder(float),  # branch exponent in [1/2, 1] instead of the parameterization's own
        gamma0=1.0,  # richness: the output is divided by it
        beta0=1.0,  # branch multiplier at the base depth
        lr_depth=config_dict.placeholder(float),  # am_mup: exponent of its LR in depth (its own is -3/2)
        branch_init="*",  # am_mup: glob of the branch weights whose initial variance falls with depth
    )

    config.optimizer = dict(
        name="sgd",  # sgd | momentum | adam | adamw
        learning_rate=0.5,  # at the base shape
        momentum=0.9,  # for momentum
        b1=0.9,  # for adam and adamw
        b2=0.999,
        eps=1e-8,
        weight_decay=0.0,  # not coupled to the learning rate factor: LR x decay is the same at every shape
    )

    config.data = dict(
        name="digits",  # digits | patches | cifar10 | cifar100 | tiny_imagenet | imagenet_resized/64x64 | imagenet2012
        data_dir=config_dict.placeholder(str),  # where prepared data sets are; unset: ~/tensorflow_datasets
        batch_size=64,
        seed=0,  # of the order of the examples and of their augmentation, the same for all trials
        image_size=config_dict.placeholder(int),  # side of the images of imagenet* and patches; unset: 64, 224, 32
        augment=dict(  # of training images, each with its own draw
            flip=False,  # left and right, half of the time
            rotate=0.0,  # degrees, up to this either way
            shear=0.0,  # degrees, likewise
            scale=(1.0, 1.0),  # range of a zoom
            crop=(1.0, 1.0),  # range of the share of the area of a random crop, resized to the whole
            brightness=0.0,  # factor up to 1 -+ this
            contrast=0.0,
            saturation=0.0,
        ),
        workers=0,  # processes that read and decode what does not fit in memory (imagenet*); 0: threads
        skip_corrupt=False,  # go on without records that cannot be read, and count them
    )
    config.epochs = 2.0
    config.schedule = "linear"  # of the learning rate: linear (to 0 at the last step) | cosine (likewise) | constant
    config.warmup_epochs = 0.0  # the learning rate rises linearly to its value first
    config.loss = "cross_entropy"  # cross_entropy | mse | centered_mse (of the change of the output since the start)
    config.label_smoothing = 0.0
    config.label_noise = 0.0  # probability that a training label is replaced by a random one, anew at every step
    config.clip = config_dict.placeholder(float)  # largest norm of the gradient; unset: none
    config.accumulate = 1  # parts in which a batch is computed, one after another: the same step with less memory
    config.ema = config_dict.placeholder(
        float
    )  # decay of a moving average of the weights, which is evaluated; unset: none
    config.seed = 0  # of the initial parameters
    config.log_every = 10  # steps between two lines of progress
    config.log_updates = False  # also the root mean square update of every group of parameters
    config.evaluate_every = "1 epoch"  # of the validation split: "100 steps" | "0.5 epochs" | "never" (only at the end)

    # main.py train with a workdir goes on from its last checkpoint. A sweep checkpoints the trials it is at.
    config.checkpoint = dict(
        every="10 minutes",  # "100 steps" | "1 epoch" | "10 minutes" | "never"; a best one is written at any evaluation
        keep=2,  # the last so many
        best=1,  # and those with the lowest validation loss
    )
    config.parallel = dict(
        devices=config_dict.placeholder(int),  # that share each batch of main.py train; unset: all, but one CPU
        wrapper="pmap",  # pmap | jit (over a mesh); of sweeps too
    )

    # main.py sweep: learning rate x parameterization x optimizer x seed at each depth (width = model.width) and at each
    # width (depth = model.depth).
    config.sweep = dict(
        parameterizations=("sp", "mup", "depth_mup"),
        optimizers=("sgd", "adam"),
        depths=(2, 4, 8, 16, 32),
        widths=(32, 64, 128, 256),
        log2_learning_rates=dict(sgd=(-8.0, 1.0), momentum=(-11.0, -2.0), adam=(-12.0, -3.0), adamw=(-12.0, -3.0)),
        per_octave=2,  # grid points per factor of 2
        seeds=6,  # config.seed, config.seed + 1, ...
        axes="",  # more axes, any key: "parameterization.gamma0 = log(0.1, 10, 5); model.norm = none, layer"
        judge_by="loss",  # what is best: loss | last_loss (of the last tenth of the steps) | mean_loss (of all) |
        # validation_loss | accuracy | validation_accuracy
        calibrate=True,  # the report predicts learning rates by a gradient and a jvp at each depth too
        measure=(),  # also, of trials trained from now on: updates, sharpness, kernels (docs/laws.md)
        measure_points=5,  # how often while a trial trains, from its start to its end
        adaptive=False,  # fewer trials: from the second size on, only the learning rates around the last size's optimum
        at_once=config_dict.placeholder(int),  # trials that run together; unset: as many as fit in memory, at most 128
        max_trials=20_000,  # a larger plan needs --yes
        cache=True,  # compiled programs are kept in the workdir
        cpus=1.0,  # of each group of trials, for --launcher=ray
        gpus=0.0,
    )

    # main.py check: coordinate check over widths (at check.depth) and depths (at check.width). The base shape is taken
    # as 1, since a base depth has honest transients at small depth.
    config.check = dict(
        optimizers=("sgd", "adam"),
        log2_learning_rates=dict(sgd=-10.0, momentum=-12.0, adam=-10.0, adamw=-10.0),  # small: saturation hides slopes
        widths=(64, 128, 256, 512),
        depths=(4, 8, 16, 32, 64),
        width=256,
        depth=8,
        steps=(1, 10),  # after which the change of the features is measured
        seeds=8,
        batch_size=32,
        beta0=1.0,  # branch multiplier at depth 1, on top of parameterization.beta0
        tolerance=0.1,  # a slope beyond this is not ok
    )
    if model in CHECKS:
        config.check.update(CHECKS[model], steps=(1, 4), seeds=16, batch_size=8)
    return config

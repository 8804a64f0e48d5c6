"""All settings; default:FAMILY is another family of models: default:vit.

python main.py explain --config=configs/default.py
python main.py explain --config=configs/default.py:vit

Other configs override this one: they add no key.

`make configs` writes this file from the declarations of settings: settings.py, training_settings.py, models/, data/.
"""

from ml_collections import config_dict

# The families of models and what only they have; their classes in depthmup/models say more.
FAMILIES: dict[str, dict] = dict(
    mlp=dict(  # MLP
        width=128,  # N
        depth=4,  # L, the number of hidden layers
        use_bias=False,  # biases everywhere
    ),
    residual_mlp=dict(  # ResidualMLP
        width=128,  # N
        depth=8,  # L, the number of residual branches
        use_bias=False,  # biases in the read-in, the branches and the readout
        norm="none",  # none | layer; layer: a LayerNorm at the entry of each branch
        readout="phi",  # phi | linear; phi: the activation acts before the readout
        zero_init_branch=False,  # branches start at 0
    ),
    cnn=dict(  # CNN
        width=32,  # C, the channels of a layer whose multiplier is 1
        depth=4,  # L, the number of convolutions
        channels=(1.0,),  # multipliers of width, layer by layer, repeated
        kernels=(3,),  # kernel sizes, layer by layer, repeated
        padding="circular",  # zero | circular
        # stationary | paper; initial variance of weights before a GELU times fan_in: 2.352 or 2.828
        gelu_variance="stationary",
    ),
    residual_cnn=dict(  # ResidualCNN
        width=64,  # C, the number of channels
        depth=4,  # K, the number of residual blocks
        kernels=(3, 3),  # sizes of a branch's convolutions W_1..W_m; 1 is a dense layer over channels
        bottleneck=1,  # W_1..W_{m-1} have width / bottleneck channels
        padding="circular",  # zero | circular
        norm="none",  # none | batch; batch: a batch norm before each nonlinearity of a branch
        dropout=0.0,  # rate of dropout between the convolutions of a branch
        gain=2.0,  # c: branch weights start with variance c / fan_in (am_mup: c / (K fan_in))
        zero_init_branch=False,  # the last convolution of a branch starts at 0
    ),
    simple_resnet=dict(  # SimpleResNet
        width=128,  # channels of the last stage, 8 times those of the first
        depth=4,  # the number of residual blocks, each of one convolution; 3 or more
        pool="average",  # average | max; the kind of the three poolings
        count="blocks",  # blocks | weight_layers; what the depth rules count; weight_layers is the paper's
        padding="zero",  # zero | circular
        norm="none",  # none | batch; batch: a batch norm after each convolution of a branch
        zero_init_branch=False,  # branches start at 0
    ),
    resnet=dict(  # ResNet
        width=16,  # channels of the first stage, before a bottleneck's expansion
        depth=1,  # multiplies the numbers of blocks in stages
        # blocks per unit of depth; (1, 1, 1): CIFAR's 6n + 2 layers; (1, 1, 1, 1): ResNet-18 at depth 2; (3, 4, 6, 3):
        # ResNet-34 and 50
        stages=(1, 1, 1),
        bottleneck=False,  # blocks have 1x1, 3x3, 1x1 convolutions, as in ResNet-50
        stem="cifar",  # cifar | imagenet; a 3x3 convolution, or 7x7 of stride 2 and 3x3 max pooling
        norm="batch",  # batch | layer | none; after each convolution; layer: over each channel's plane
        zero_init_branch=False,  # the last convolution of a branch starts at 0
    ),
    vit=dict(  # ViT
        width=64,  # the size of a token, a multiple of heads
        depth=4,  # blocks of attention and MLP, each with two residual branches
        activation="gelu",  # linear | relu | erf | tanh | gelu | silu
        heads=4,  # their number is fixed: the head size width / heads grows with width
        patch=2,  # side of a patch in pixels, which must divide the image's
        mlp_ratio=4,  # hidden units of the MLP over width
        norm="layer",  # layer | none; before each branch and the readout
        pool="cls",  # cls | mean; what the readout reads: the class token, or the mean of the tokens
        use_bias=True,  # biases everywhere
        zero_init_branch=False,  # branches start at 0
    ),
    gpt=dict(  # GPT
        width=64,  # the size of a token's state, a multiple of heads
        depth=4,  # blocks of attention and MLP, each with two residual branches
        activation="gelu",  # linear | relu | erf | tanh | gelu | silu
        heads=4,  # their number is fixed: the head size width / heads grows with width
        # heads of keys and of values, which neighbouring queries share; unset: as many as queries
        kv_heads=config_dict.placeholder(int),
        # learned | rotary; learned: a table added to the embedding; rotary: queries and keys are turned
        positions="learned",
        # plain | gated; gated: phi(W_g x) * W_1 x in place of phi(W_1 x), GEGLU with gelu, SwiGLU with silu
        mlp="plain",
        mlp_ratio=4,  # hidden units of the MLP over width
        norm="layer",  # layer | rms; before each branch and the readout
        tied=False,  # the readout is the embedding
        use_bias=True,  # biases in the blocks
        zero_init_branch=False,  # branches start at 0
        # above 512 tokens attention runs in the accelerator's own kernel, which has gradients alone; False: in blocks
        kernels=True,
        # nothing | dots; of the blocks that remat computes again; dots: all products with parameters, so that it
        # repeats little
        remat_keeps="nothing",
    ),
)
# What main.py check does where it is not as for the residual MLP, which has the values of config.check below.
CHECKS: dict[str, dict] = dict(
    mlp=dict(
        depths=(),
        steps=(1, 4),
        batch_size=8,
    ),
    cnn=dict(
        log2_learning_rates=dict(sgd=-11.0, momentum=-12.0, adam=-13.0, adamw=-10.0),
        widths=(32, 64, 128),
        depths=(),
        depth=3,
        steps=(1, 4),
        batch_size=8,
    ),
    residual_cnn=dict(
        log2_learning_rates=dict(sgd=-11.0, momentum=-12.0, adam=-13.0, adamw=-10.0),
        widths=(32, 64, 128),
        depths=(4, 8, 16, 32),
        width=64,
        depth=4,
        steps=(1, 4),
        batch_size=8,
    ),
    simple_resnet=dict(
        log2_learning_rates=dict(sgd=-5.0, momentum=-12.0, adam=-10.0, adamw=-10.0),
        widths=(128, 256, 512),
        depths=(4, 8, 16, 32),
        depth=4,
        steps=(1, 4),
        batch_size=8,
    ),
    resnet=dict(
        log2_learning_rates=dict(sgd=-12.0, momentum=-12.0, adam=-13.0, adamw=-10.0),
        widths=(16, 32, 64),
        depths=(2, 4, 8, 16),
        width=16,
        depth=1,
        steps=(1, 4),
        batch_size=8,
        beta0=0.0625,
    ),
    vit=dict(
        log2_learning_rates=dict(sgd=-12.0, momentum=-12.0, adam=-13.0, adamw=-10.0),
        widths=(64, 128, 256),
        depths=(4, 8, 16, 32),
        width=64,
        depth=4,
        steps=(1, 4),
        batch_size=8,
    ),
    gpt=dict(
        log2_learning_rates=dict(sgd=-12.0, momentum=-12.0, adam=-13.0, adamw=-10.0),
        widths=(64, 128, 256),
        depths=(4, 8, 16, 32),
        width=64,
        depth=4,
        steps=(1, 4),
        batch_size=2,
    ),
)
# The data set of a family that does not take images.
DATA: dict[str, dict] = dict(
    gpt=dict(
        name="text",
    ),
)


def get_config(model: str = "residual_mlp") -> config_dict.ConfigDict:
    """model: a family; give it behind a colon, --config=configs/default.py:vit."""
    if model not in FAMILIES:
        raise ValueError(f"unknown model family {model!r} behind the colon of --config (known: {', '.join(FAMILIES)})")
    config = config_dict.ConfigDict()

    config.model = dict(
        name=model,
        activation="relu",  # linear | relu | erf | tanh | gelu | silu
        dtype="float32",  # float32 | bfloat16; the type of the computation; parameters are float32
        scan=True,  # equal blocks run in one scanned loop, so compile time is flat in depth; False: unrolled
        # gradients keep only the states between blocks and compute the blocks again: less memory, more work
        remat=False,
    )

    # At the base shape, where hyperparameters are tuned, sp, mup, depth_mup and depth_ode are all the same.
    config.parameterization = dict(
        # sp | depth_sp | ntp | mup | depth_mup | depth_ode | am_mup | completep; the rules (docs/rules.md)
        name="depth_mup",
        base_width=32,  # counts what model.width counts
        base_depth=2,  # counts what model.depth counts
        base_head_dim=1,  # attention equals 1/sqrt(head_dim) at this head size
        alpha=config_dict.placeholder(float),  # branch exponent in [1/2, 1]; unset: the parameterization's own
        gamma0=1.0,  # richness: the output is divided by it
        beta0=1.0,  # branch multiplier at the base depth
        # exponent in depth of every LR (am_mup; unset: -3/2) or of the LRs in branches (the others; unset: 2 alpha - 1
        # for SGD, alpha - 1 for Adam)
        lr_depth=config_dict.placeholder(float),
        branch_init="*",  # am_mup: glob of branch weights whose initial variance falls with depth
        base_batch_size=config_dict.placeholder(int),  # batch size of the tuned training
        base_steps=config_dict.placeholder(int),  # steps of the tuned training
        # none | sde | completed_p | timescale | power_lines | nanochat | marin | hyperp | token_horizon; how
        # hyperparameters follow both (docs/batch.md)
        batch_rule=config_dict.placeholder(str),
    )

    config.optimizer = dict(
        name="sgd",  # sgd | momentum | adam | adamw
        learning_rate=0.5,  # at the base shape
        momentum=0.9,  # for momentum
        b1=0.9,  # for adam and adamw
        b2=0.999,  # for adam and adamw
        eps=1e-08,  # for adam and adamw
        weight_decay=0.0,  # learning rate x decay is the same at every shape
    )

    config.data = dict(
        # digits | patches | folder | text | tokens | cifar10 | cifar100 | tiny_imagenet | imagenet_resized/64x64 |
        # imagenet2012
        name="digits",
        # folder of images; file or folder of text, unset: NumPy's docstrings; folder of tokens, unset: the Python
        # sources of the pinned packages; or folder of prepared data sets, unset: ~/tensorflow_datasets
        data_dir=config_dict.placeholder(str),
        batch_size=64,  # examples of a step
        seed=0,  # of the order of examples and their augmentation
        # side of images of imagenet* (unset: 64, 224), patches (32), folder (its own)
        image_size=config_dict.placeholder(int),
        # bytes of text, or tokens, that a model sees, each with the next one as its label (unset: 64)
        context=config_dict.placeholder(int),
        # number of different tokens (unset: as tokens.json says, or by the largest one)
        vocabulary=config_dict.placeholder(int),
        # random changes of training images, each image with its own draw
        augment=dict(
            flip=False,  # images are mirrored left to right, half of the time
            rotate=0.0,  # degrees: the angle is drawn from [-rotate, rotate]
            shear=0.0,  # degrees: the angle is drawn from [-shear, shear]
            scale=(1.0, 1.0),  # the range of the factor of a zoom
            crop=(1.0, 1.0),  # the range of the share of the area of a random crop, which is resized to the whole
            brightness=0.0,  # a factor from [1 - brightness, 1 + brightness] multiplies the image
            contrast=0.0,  # a factor drawn likewise blends with the mean of the grey image
            saturation=0.0,  # a factor drawn likewise blends with the grey image
        ),
        workers=0,  # processes that decode images (imagenet*, large folders); 0: threads
        skip_corrupt=False,  # go on without records that cannot be read, and count them
        verify=False,  # read all files of a folder of images anew, unchanged ones too
    )
    config.epochs = 2.0  # the length of a training
    # linear | cosine | cosine_to_tenth | wsd | constant; of the learning rate; linear and cosine end at 0,
    # cosine_to_tenth at a tenth, wsd falls in the last fifth
    config.schedule = "linear"
    config.warmup_epochs = 0.0  # the learning rate rises linearly first
    # cross_entropy | mse | centered_mse; centered_mse: of the change of the output since the start
    config.loss = "cross_entropy"
    config.label_smoothing = 0.0  # for cross_entropy, in training
    config.label_noise = 0.0  # probability that a training label is replaced by a random one, anew at every step
    config.clip = config_dict.placeholder(float)  # largest norm of the gradient; unset: none
    config.accumulate = 1  # parts in which a batch is computed, one after another
    # decay of a moving average of the weights, which is evaluated; unset: no average
    config.ema = config_dict.placeholder(float)
    config.log_updates = False  # log the root mean square update of every group of parameters as well
    config.seed = 0  # of the initial parameters
    config.log_every = 10  # steps between two lines of progress
    config.evaluate_every = "1 epoch"  # "100 steps" | "0.5 epochs" | "never": at the end

    # main.py train with a workdir goes on from its last checkpoint. A sweep checkpoints the trials that it trains. A
    # best checkpoint is written at any evaluation.
    config.checkpoint = dict(
        every="10 minutes",  # "100 steps" | "1 epoch" | "10 minutes" | "never"
        keep=2,  # checkpoints kept, the last ones
        best=1,  # checkpoints kept besides, those with the lowest validation loss
        failures=2,  # so many in a row that cannot be written end the run with status 1; 0: none does
    )

    config.parallel = dict(
        devices=config_dict.placeholder(int),  # devices that share each batch of main.py train; unset: all, but one CPU
        wrapper="pmap",  # pmap | jit; jit: over a mesh; of sweeps too
        devices_per_trial=1,  # devices that share each batch of a trial of main.py sweep; 2 or more by jit
        # "data=4,fsdp=8": by jit, the state of a training split over fsdp, its batches over both (docs/pods.md)
        mesh=config_dict.placeholder(str),
    )

    # main.py sweep: learning rate x parameterization x optimizer x seed at each depth (width = model.width) and at each
    # width (depth = model.depth).
    config.sweep = dict(
        # sp | depth_sp | ntp | mup | depth_mup | depth_ode | am_mup | completep
        parameterizations=("sp", "mup", "depth_mup"),
        optimizers=("sgd", "adam"),  # sgd | momentum | adam | adamw
        depths=(2, 4, 8, 16, 32),
        widths=(32, 64, 128, 256),
        batch_sizes=(),  # at data.batch_size else, and as many epochs: fewer steps if larger
        epochs=(),  # lengths of training at data.batch_size; at `epochs` else
        # the lowest and the highest learning rate of each optimizer
        log2_learning_rates=dict(sgd=(-8.0, 1.0), momentum=(-11.0, -2.0), adam=(-12.0, -3.0), adamw=(-12.0, -3.0)),
        per_octave=2,  # grid points per factor of 2
        seeds=6,  # config.seed, config.seed + 1, ...: so many trainings of each point
        # planned | decided; decided: then more seeds and rates, where verdicts need them (docs/sweeps.md)
        until="planned",
        max_seeds=24,  # seeds are doubled up to this until verdicts are decided
        axes="",  # more axes, any key: "parameterization.gamma0 = log(0.1, 10, 5); model.norm = none, layer"
        # loss | last_loss | mean_loss | validation_loss | accuracy | validation_accuracy; last_loss: of the last tenth
        # of the steps; mean_loss: of all steps
        judge_by="loss",
        margin="1 octave",  # 0.5%: of the loss; what a value may cost that transfers (docs/laws.md)
        calibrate=True,  # the report predicts learning rates by a gradient and a jvp at each depth too
        # updates | sharpness | kernels | noise_scale; measured of trials trained from now on (docs/sweeps.md)
        measure=(),
        measure_points=5,  # how often while a trial trains, from its start to its end
        adaptive=False,  # from the second size on, train only the rates around the last size's optimum
        at_once=config_dict.placeholder(int),  # trials that run together; unset: as many as fit in memory, at most 128
        max_trials=20_000,  # a plan of more trials is refused, by --dry_run too, unless --yes is given
        cache=True,  # compiled programs are kept in the workdir
    )

    # main.py check: coordinate check over widths (at check.depth) and depths (at check.width). The base shape is taken
    # as 1, since a base depth has honest transients at small depth.
    config.check = dict(
        optimizers=("sgd", "adam"),  # sgd | momentum | adam | adamw
        log2_learning_rates=dict(sgd=-10.0, momentum=-12.0, adam=-10.0, adamw=-10.0),  # small: saturation hides slopes
        widths=(64, 128, 256, 512),
        depths=(4, 8, 16, 32, 64),
        width=256,
        depth=8,
        steps=(1, 10),  # after which the change of the features is measured
        seeds=8,  # of each training
        max_seeds=64,  # seeds are doubled up to this where the answer is undecided
        batch_size=32,  # training examples; all, if there are fewer
        beta0=1.0,  # branch multiplier at depth 1, on top of parameterization.beta0
        tolerance=0.1,  # a slope is ok within +- this, not ok beyond, else undecided
    )

    for key, value in FAMILIES[model].items():  # a placeholder of the table would be one of all configs of a process
        is_placeholder = isinstance(value, config_dict.FieldReference)
        config.model[key] = config_dict.placeholder(value.get_type()) if is_placeholder else value
    config.data.update(DATA.get(model, {}))
    config.check.update(CHECKS.get(model, {}))
    return config

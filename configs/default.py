"""Every key there is, with its meaning. Other configs override this one: they add no key.

python main.py explain --config=configs/default.py
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    config = config_dict.ConfigDict()

    config.model = dict(
        name="residual_mlp",  # the model family
        width=128,  # N
        depth=8,  # L, the number of residual branches
        activation="relu",  # relu | tanh | erf | gelu | linear
        use_bias=False,  # biases in read-in, branches and readout
        norm="none",  # none | layer: a LayerNorm at the entry of each branch
        readout="phi",  # phi: the activation acts before the readout | linear
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
        name="digits",  # digits: 1,797 images of 8x8 pixels inside scikit-learn
        batch_size=64,
        seed=0,  # of the order of the examples, the same for all trials
    )
    config.epochs = 2.0
    config.schedule = "linear"  # of the learning rate: linear (to 0 at the last step) | constant
    config.seed = 0  # of the initial parameters
    config.log_every = 10  # steps between two lines of progress

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
        tolerance=0.1,  # a slope beyond this is not ok
    )
    return config

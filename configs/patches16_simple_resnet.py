"""SimpleResNets on photo patches of 16x16, SGD: a sweep of 30 minutes.

    python main.py sweep --config=configs/patches16_simple_resnet.py --workdir=runs/patches16_simple_resnet
    python main.py --config=configs/patches16_simple_resnet.py --workdir=runs/patches16_lone     (one network, 2 s)

Cost: 1,200 trainings of 78 steps, about 30 minutes on two CPU cores.
Result (docs/guide/choose.md): the best learning rates of sp and mup fall by 6 octaves from depth 3 to 24. That of
depth_mup is undecided: its loss is flat right below the edge. Sizes, steps and rates are our choice, and that the
branch factor counts residual blocks (A.1 of the depth-muP paper counts layers).
"""

from ml_collections import config_dict

from configs import default


def get_config() -> config_dict.ConfigDict:
    config = default.get_config("simple_resnet")
    config.model.width = 64  # 8 channels in the first stage
    config.model.depth = 3
    config.parameterization.base_width = 32
    config.parameterization.base_depth = 3
    config.optimizer.learning_rate = 2.0**-3.5
    config.data.name = "patches"
    config.data.image_size = 16
    config.epochs = 0.25  # 78 steps
    config.sweep.depths = (3, 4, 6, 12, 24)
    config.sweep.widths = ()
    config.sweep.optimizers = ("sgd",)
    config.sweep.log2_learning_rates.sgd = (-10.5, -1.0)
    config.sweep.seeds = 4
    return config

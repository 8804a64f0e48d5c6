"""draft"""

from typing import Any

from configs import default


def vit(scale: str) -> Any:
    config = default.get_config("vit")
    config.model.width = 64
    config.model.depth = 2
    config.model.heads = 4
    config.model.patch = 4
    config.parameterization.base_width = 32
    config.parameterization.base_depth = 2
    config.parameterization.base_head_dim = 8
    config.optimizer.name = "adam"
    config.data.name = "folder"
    config.data.image_size = 16
    config.epochs = 2.0
    config.warmup_epochs = 0.2
    config.schedule = "constant"
    config.sweep.parameterizations = ("mup", "depth_mup")
    config.sweep.depths = (2, 4, 8, 16)
    config.sweep.widths = ()
    config.sweep.optimizers = ("adam",)
    config.sweep.log2_learning_rates.adam = (-13.0, -4.0)
    config.sweep.per_octave = 1
    config.sweep.seeds = 3
    config.sweep.adaptive = True
    config.sweep.calibrate = False
    config.sweep.axes = "model.norm = layer, none; parameterization.lr_depth = 0, -0.5"
    return config

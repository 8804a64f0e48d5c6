"""draft"""

from typing import Any

from configs import default


def resnet(scale: str) -> Any:
    config = default.get_config("resnet")
    config.model.width = 16
    config.model.depth = 1
    config.parameterization.base_width = 16
    config.parameterization.base_depth = 1
    config.data.name = "folder"
    config.data.image_size = 16
    config.epochs = 1.0
    config.schedule = "constant"
    config.sweep.parameterizations = ("mup", "depth_mup")
    config.sweep.depths = (1, 2, 4, 8)
    config.sweep.widths = ()
    config.sweep.optimizers = ("sgd",)
    config.sweep.log2_learning_rates.sgd = (-9.0, 1.0)
    config.sweep.seeds = 3
    config.sweep.adaptive = True
    config.sweep.calibrate = False
    config.sweep.axes = "model.norm = batch, layer; parameterization.beta0 = 1.0, 0.0625"
    return config

"""ViTs on photo patches of 16x16 pixels, Adam: a sweep of 20 minutes.

    python main.py sweep --config=configs/patches16_vit.py --workdir=runs/patches16_vit
    python main.py --config=configs/patches16_vit.py --workdir=runs/patches16_lone      (one network, 3 s)

Cost: 960 trainings of 78 steps of batch 32, about 20 minutes on two CPU cores.
Result (docs/guide/choose.md): with LayerNorm the best learning rates of sp and mup fall as depth^-.86 and depth^-.94
from depth 2 to 16, so muP does not transfer over depth, against section 3 of the depth-muP paper (arXiv 2309.16620);
whether the short training is the reason is not known. Without it sp and mup do not train at depth 8 and 16. depth_mup
is undecided. Sizes, steps and rates are our choice, and Adam's rule with L^-1/2 in branches (the paper's is
--config.parameterization.lr_depth=0).
"""

from ml_collections import config_dict

from configs import default


def get_config() -> config_dict.ConfigDict:
    config = default.get_config("vit")
    config.model.width = 32
    config.model.depth = 2
    config.model.patch = 4
    config.parameterization.base_width = 16
    config.parameterization.base_depth = 2
    config.parameterization.base_head_dim = 4
    config.data.name = "patches"
    config.data.image_size = 16
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 2.0**-6.5
    config.data.batch_size = 32
    config.epochs = 0.125  # 78 steps
    config.sweep.depths = (2, 4, 8, 16)
    config.sweep.widths = ()
    config.sweep.optimizers = ("adam",)
    config.sweep.log2_learning_rates.adam = (-13.0, -4.0)
    config.sweep.per_octave = 1
    config.sweep.seeds = 4
    config.sweep.axes = "model.norm = layer, none"
    return config

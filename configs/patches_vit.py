"""A small Vision Transformer (A.3) on photo patches: no download.

    python main.py --config=configs/patches_vit.py --workdir=runs/patches_vit

COST_patches_vit
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    config = papers.paper_a("vit", "patches", dict(flip=True), epochs=5.0)
    config.model.patch = 4
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 2.0**-9
    config.schedule = "linear"
    return config

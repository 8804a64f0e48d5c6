"""ResNet-8 with batch norm, 1/sqrt(depth) on its branches (A.2), on photo patches: no download.

    python main.py --config=configs/patches_resnet.py --workdir=runs/patches_resnet

Cost: 1,560 steps of batch 64, 1 min 46 s on two CPU cores.
Expect: 84.7% of the validation and 81.3% of the test patches right; a linear model has 19%. All values are our choice.
Along depth the coordinate check is ok at beta0 = 1/16 and not at 1, the paper's value, used here (docs/checks.md).
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    config = papers.paper_a("resnet", "patches", dict(flip=True), epochs=5.0)
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 2.0**-8
    config.schedule = "linear"
    return config

"""Residual MLPs on handwritten digits, SGD and Adam: a sweep of 2 minutes.

    python main.py sweep --config=configs/digits.py --workdir=runs/digits
    python main.py --config=configs/digits.py --workdir=runs/digits_lone      (one network)

Cost: 5,472 trainings of 44 steps, about 2 minutes on two CPU cores.
Result: with these epochs and rates two or three of the twelve questions that transfer.py decides stay open
(docs/laws.md). The learning rate decays linearly to 0, since with a constant learning rate the last steps' noise blurs
the optimum.
"""

from ml_collections import config_dict

from configs import default


def get_config() -> config_dict.ConfigDict:
    config = default.get_config()
    config.model.width = 128  # width of the depth sweep
    config.model.depth = 2  # depth of the width sweep
    return config

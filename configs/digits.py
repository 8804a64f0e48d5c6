"""Learning-rate transfer over depth and width on handwritten digits, residual MLPs, SGD and Adam.

    python main.py sweep --config=configs/digits.py --workdir=runs/digits_transfer      (make transfer)

Cost: 5,472 trainings of 44 steps, about 2 minutes on two CPU cores.
Expect: the best learning rates of sp and mup fall with depth, and the one of depth_mup stays within a quarter of an
octave (Adam) or seven tenths (SGD, where it is at the edge of divergence at small depth). The learning rate decays
linearly to 0, since with a constant learning rate the last steps' noise blurs the optimum.
"""

from ml_collections import config_dict

from configs import default


def get_config() -> config_dict.ConfigDict:
    config = default.get_config()
    config.model.width = 128  # width of the depth sweep
    config.model.depth = 2  # depth of the width sweep
    return config

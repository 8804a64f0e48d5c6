"""Depth-muP paper, Figure 3e-f: ViTs without layer norm on ImageNet, Adam.

    python -m depthmup.data.prepare imagenet2012
    python main.py --config=configs/imagenet_vit.py --workdir=runs/imagenet_vit
    python main.py sweep --config=configs/imagenet_vit.py --workdir=runs/sweep

Cost: 180,160 steps of batch 64 and 3.2e17 operations for each training; 456 trainings and 7.4e19 operations for the
sweep, by the arithmetic of --dry_run: 23 years at 1e11 operations a second.
Not run: the data set needs a download.
The paper (A.3): the best learning rate of depth_mup transfers over depth.
The paper's rule has no power of depth in Adam's learning rates; ours, with L^-1/2 in branches, is
--config.parameterization.lr_depth=-0.5. Ours: epochs, warm-up, patch size, heads, learning rate, shapes and base
shape (the paper's text has lost them).
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    config = papers.paper_a("vit", "imagenet2012", papers.IMAGENET, epochs=10.0)
    config.update(papers.VIT)
    config.model.norm = "none"
    config.model.width = 384
    config.model.depth = 12
    config.model.heads = 6
    config.model.patch = 16
    config.sweep.parameterizations = ("depth_mup",)
    config.sweep.depths = (3, 6, 12)
    config.sweep.widths = (192, 384)
    config.data.workers = 16
    return config

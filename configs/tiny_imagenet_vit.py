"""Depth-muP paper, Figure 3a-d: ViTs on Tiny ImageNet, Adam with warm-up.

    python -m depthmup.data.prepare tiny_imagenet
    python main.py --config=configs/tiny_imagenet_vit.py --workdir=runs/tiny_imagenet_vit
    python main.py sweep --config=configs/tiny_imagenet_vit.py --workdir=runs/sweep

Cost: 28,120 steps of batch 64 and 1.2e15 operations for each training; 2,736 trainings and 4.4e18 operations for the
sweep, by the arithmetic of --dry_run: 1.4 years at 1e11 operations a second.
Not run: the data set needs a download. docs/results.md has smaller networks.
The paper (A.3): the best learning rate transfers over depth in all settings, with layer norm and without; larger
depth helps more consistently with the branch factor (depth_mup) than without (mup). --config.schedule=cosine is Figure
3d.
The paper's rule has no power of depth in Adam's learning rates; ours, with L^-1/2 in branches, is
--config.parameterization.lr_depth=-0.5. Ours: the length of the warm-up, patch size, heads, learning rate, shapes and
base shape (the paper's text has lost them); a lone training has layer norm.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    config = papers.small_a("vit", "tiny_imagenet")
    config.sweep.axes = "model.norm = layer, none"
    return config

"""AM-muP paper, Figure 2a: plain CNNs on CIFAR-10, one epoch of SGD.

    python -m depthmup.data.prepare cifar10
    python main.py --config=configs/cifar10_cnn.py --workdir=runs/cifar10_cnn
    python main.py sweep --config=configs/cifar10_cnn.py --workdir=runs/sweep

Cost: 351 steps of batch 128 and 2.3e13 operations for each training; 2,520 trainings and 4.6e17 operations for the
sweep, by the arithmetic of --dry_run: 53 days at 1e11 operations a second.
Not run: the data set needs a download. docs/results.md has smaller networks.
The paper: the best learning rate falls like depth^-1.337; in each segment two depths predict the others. Under am_mup's
own rule, --config.parameterization.lr_depth=-1.5, it so stays about the same. Zero padding (Figure 4,
--config.model.padding=zero) has the same power. GELU (Figure 3) has depth^-1.38: --config.model.activation=gelu
--config.model.gelu_variance=paper, an init of He's variance times sqrt(2), under which the variance in fact grows over
depth (docs/models.md). CIFAR-100 (Figure 5, --config.data.name=cifar100) has depth^-1.392.
Ours: width 64 (the paper has 64 to 512), 3 seeds, the even depths of 22..30, the learning rate of a lone training.
"""

from ml_collections import config_dict

from configs import papers


def get_config() -> config_dict.ConfigDict:
    return papers.paper_b("cnn", "cifar10")

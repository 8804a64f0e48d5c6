"""Small GPTs on text, byte by byte, AdamW: depth and width; no download.

    python main.py sweep --config=configs/text_gpt.py --workdir=runs/text_gpt
    python main.py sweep --config=configs/text_gpt.py --workdir=runs/mine --config.data.data_dir=my_corpus/
    python main.py check --config=configs/text_gpt.py
    python main.py grow --config=configs/text_gpt.py --workdir=runs/text_gpt --width=512 --depth=24
    python main.py plan --config=configs/text_gpt.py --config.model.width=512 --config.model.depth=24
    python main.py --config=configs/text_gpt.py --workdir=runs/text_gpt_lone      (one network)

Without data.data_dir the text is the docstrings of NumPy, 1.5 million bytes. Epochs count the whole text: for a text
of n bytes 300 steps are 200,000 / n epochs, and the warm-up is a tenth of them.
Cost: minutes on two cores; `--dry_run` says how many on yours.
Not run; docs/language.md has larger sweeps of such models.
"""

from ml_collections import config_dict

from configs import default

STEPS_OF_AN_EPOCH = 2300  # of the docstrings


def get_config() -> config_dict.ConfigDict:
    config = default.get_config("gpt")
    config.model.width = 32  # width of the depth sweep
    config.model.depth = 2  # depth of the width sweep
    config.parameterization.name = "completep"
    config.parameterization.base_width = 32
    config.parameterization.base_depth = 2
    config.parameterization.base_head_dim = 8
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2.0**-6.5
    config.data.batch_size = 16
    config.data.context = 32
    config.epochs = 0.13  # 300 steps
    config.warmup_epochs = 0.013
    config.schedule = "constant"
    config.sweep.depths = (2, 4, 8)
    config.sweep.widths = (32, 64, 128)
    config.sweep.optimizers = ("adamw",)
    config.sweep.parameterizations = ("sp", "mup", "completep")
    config.sweep.log2_learning_rates.adamw = (-10.0, -3.0)
    config.sweep.per_octave = 1
    config.sweep.seeds = 2
    config.sweep.judge_by = "last_loss"
    config.sweep.calibrate = False
    config.check.widths = (32, 64, 128)
    config.check.depths = (2, 4, 8)
    return config

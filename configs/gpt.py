"""GPTs of the shapes of GPT-2 or Llama, AdamW; no download.

    python main.py --config=configs/gpt.py --workdir=runs/gpt      (the base, width 192 and depth 2)
    python main.py --config=configs/gpt.py --workdir=runs/124m --config.model.width=768 --config.model.depth=12
    python main.py plan --config=configs/gpt.py --config.model.width=768 --config.model.depth=12 --topology=v5e:2x2
    python main.py plan --config=configs/gpt.py:llama --config.model.width=768 --config.model.depth=12

Width 768 and depth 12 are GPT-2's smallest, "124M" with its vocabulary of 50,257. The number of tokens is the data's:
8,192 of the Python sources of the pinned packages, which are made at the first use (minutes); a folder of nanoGPT's
train.bin and val.bin is data.data_dir, and data.name=text has bytes. An epoch is 4,625 steps. The number of heads is
fixed, 12, and their size width / 12 grows with the width: for heads of 64 at another width set model.heads to width /
64, and sweep at this number of heads. llama has rotary positions, RMSNorm, SwiGLU of 3 times the width, 4 heads of keys
and values and no biases. On accelerators set model.dtype=bfloat16. Gradients compute the blocks again but for their
products (model.remat): with memory to spare remat=False is faster.
Cost: `plan` says what fits your devices.
Not run: compiled for the sizes above alone.
"""

from ml_collections import config_dict

from configs import default

LLAMA = {"positions": "rotary", "norm": "rms", "mlp": "gated", "activation": "silu", "mlp_ratio": 3, "use_bias": False}


def get_config(kind: str = "gpt2") -> config_dict.ConfigDict:
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"unknown kind {kind!r} behind the colon of --config=gpt: (known: gpt2, llama)")
    config = default.get_config("gpt")
    config.model.update(width=192, depth=2, heads=12, tied=True, remat=True, remat_keeps="dots")
    if kind == "llama":
        config.model.update(LLAMA)
        config.model.kv_heads = 4
    config.parameterization.name = "completep"
    config.parameterization.base_width = 192
    config.parameterization.base_depth = 2
    config.parameterization.base_head_dim = 16
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2.0**-8
    config.optimizer.b2 = 0.95
    config.optimizer.weight_decay = 0.1
    config.data.name = "tokens"
    config.data.context = 1024
    config.data.batch_size = 8
    config.epochs = 1.0
    config.warmup_epochs = 0.05
    config.schedule = "cosine_to_tenth"
    config.clip = 1.0
    config.sweep.widths = (192, 384, 768)
    config.sweep.depths = (2, 4, 8)
    config.sweep.optimizers = ("adamw",)
    config.sweep.parameterizations = ("sp", "mup", "completep")
    config.sweep.log2_learning_rates.adamw = (-11.0, -5.0)
    config.sweep.per_octave = 1
    config.sweep.judge_by = "last_loss"
    config.sweep.calibrate = False
    config.check.widths = (192, 384, 768)
    config.check.depths = (2, 4, 8)
    return config

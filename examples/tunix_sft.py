"""A Llama of tunix trained by its PeftTrainer; the lines with `dm` are those that depthmup adds.

python examples/tunix_sft.py --width=256 --depth=8    # needs `pip install google-tunix`
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from tunix.models.llama3 import model as llama
from tunix.sft import peft_trainer

import depthmup as dm

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--depth", type=int, default=4)
parser.add_argument("--steps", type=int, default=20)
args = parser.parse_args()


def build(width, depth, rngs):
    config = llama.ModelConfig(
        num_layers=depth,
        vocab_size=64,
        embed_dim=width,
        hidden_dim=2 * width,
        num_heads=width // 16,
        head_dim=16,
        num_kv_heads=width // 32,
        rope_theta=10_000,
        norm_eps=1e-5,
    )
    model = llama.Llama3(config, rngs=rngs)
    for layer in model.layers:  # tunix leaves these at 0, for pretrained weights
        for linear in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            shape = linear.kernel.shape
            linear.kernel[...] = jax.random.normal(rngs.params(), shape) / shape[0] ** 0.5
    return model


def model_input(batch):
    rows, length = batch.input_tokens.shape
    return {
        "input_tokens": batch.input_tokens,
        "input_mask": batch.input_mask,
        "positions": jnp.broadcast_to(jnp.arange(length), (rows, length)),
        "attention_mask": jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (rows, length, length)),
    }


tokens = np.cumsum(np.random.default_rng(0).integers(1, 3, size=(args.steps, 8, 32)), axis=-1) % 64
data = [peft_trainer.TrainingInput(input_tokens=batch, input_mask=np.ones_like(batch)) for batch in tokens]
one = model_input(data[0])
inputs = (one["input_tokens"], one["positions"], None, one["attention_mask"])
m = dm.setup("completep", build, *inputs, width=args.width, depth=args.depth, base=(64, 2),
             fan_in_init=True, output=lambda outputs: outputs[0])  # fmt: skip
model = m.init(jax.random.key(0))
config = peft_trainer.TrainingConfig(eval_every_n_steps=1_000, max_steps=args.steps)
trainer = peft_trainer.PeftTrainer(model, m.optimizer("adamw", 2.0**-7, weight_decay=0.01), config)
trainer.with_gen_model_input_fn(model_input).train(data)
losses = trainer.metrics_logger.get_metric_history("", "loss", "train")
print(m.explain(optimizer="adamw", learning_rate=2.0**-7), losses, sep="\n")

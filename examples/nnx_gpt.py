"""A GPT in Flax NNX at any width and depth, with the hyperparameters of a small one.

    python examples/nnx_gpt.py --width 64 --depth 4                       # tune here
    python examples/nnx_gpt.py --width 512 --depth 16 --workdir runs/gpt  # the same learning rate; goes on after a kill

Bytes of NumPy's docstrings, AdamW with decay and a cosine, parameters and batches spread over all devices, Orbax
checkpoints, the loss on text that was held out. On several hosts start it on each with --distributed.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import depthmup as dm
from depthmup.data import load

CONTEXT, HEADS, VOCABULARY = 64, 4, 256
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
for name, default in {"width": 64, "depth": 4, "batch": 32, "steps": 500, "learning_rate": 2**-6}.items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
parser.add_argument("--workdir", type=Path)
parser.add_argument("--distributed", action="store_true", help="join the other hosts, as Slurm or a TPU pod says")
args = parser.parse_args()
if args.distributed:
    jax.distributed.initialize()


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.norm_1, self.norm_2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, h):
        h = h + self.attention(self.norm_1(h), mask=nnx.make_causal_mask(jnp.ones(h.shape[:2])))
        return h + self.down(nnx.gelu(self.up(self.norm_2(h))))


class GPT(nnx.Module):
    def __init__(self, width, depth, rngs):
        self.tokens, self.positions = (nnx.Embed(size, width, rngs=rngs) for size in (VOCABULARY, CONTEXT))
        self.blocks = nnx.List([Block(width, rngs) for _ in range(depth)])
        self.norm, self.head = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, VOCABULARY, rngs=rngs)

    def __call__(self, tokens):
        h = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


# The base is the size at which hyperparameters were tuned; fan_in_init corrects inits that do not scale.
shape = jnp.zeros((1, CONTEXT), jnp.int32)
m = dm.setup("completep", GPT, shape, width=args.width, depth=args.depth, base=(64, 4), fan_in_init=True)
schedule = optax.warmup_cosine_decay_schedule(0, args.learning_rate, args.steps // 10, args.steps)
tx = m.optimizer("adamw", schedule, b2=0.95, weight_decay=0.1)

mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))


def spread(leaf):
    """Over the largest axis that divides by the number of devices; a copy on each if there is none."""
    axes = [i for i, size in enumerate(leaf.shape) if size % mesh.size == 0]
    largest = max(axes, key=lambda i: leaf.shape[i], default=None)
    return NamedSharding(mesh, P(*("data" if i == largest else None for i in range(leaf.ndim))))


def init(key):
    params = nnx.state(m.init(key), nnx.Param)
    return {"params": params, "optimizer": tx.init(params), "step": jnp.int32(0)}


graph, *_ = nnx.split(nnx.eval_shape(lambda: m.init(jax.random.key(0))), nnx.Param)
shardings = jax.tree.map(spread, jax.eval_shape(init, jax.random.key(0)))
state = jax.jit(init, out_shardings=shardings)(jax.random.key(0))  # no device ever holds all of it


def loss(params, tokens, targets):
    logits = nnx.merge(graph, params)(tokens)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


@jax.jit(donate_argnums=0, out_shardings=(shardings, None))
def train(state, tokens, targets):
    value, grads = jax.value_and_grad(loss)(state["params"], tokens, targets)
    updates, optimizer = tx.update(grads, state["optimizer"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "optimizer": optimizer, "step": state["step"] + 1}, value


text = load("text", context=CONTEXT)
batch_sharding = NamedSharding(mesh, P("data"))


def batch(split, number):
    """A pure function of the step: a run that goes on sees what an uninterrupted one would."""
    chosen = jax.random.randint(jax.random.fold_in(jax.random.key(1), number), (args.batch,), 0, len(split.inputs))
    return [jax.device_put(leaf[chosen].astype(jnp.int32), batch_sharding) for leaf in (split.inputs, split.labels)]


checkpoints = ocp.CheckpointManager(args.workdir.absolute()) if args.workdir else None
if checkpoints and checkpoints.latest_step() is not None:
    target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
    state = checkpoints.restore(checkpoints.latest_step(), args=ocp.args.StandardRestore(target))
    print(f"going on from step {state['step']}")

for number in range(int(state["step"]), args.steps):
    state, value = train(state, *batch(text.train, number))
    if (number + 1) % 100 == 0 or number + 1 == args.steps:
        print(f"step {number + 1}: loss {value:.4f}")
        if checkpoints:
            checkpoints.save(number + 1, args=ocp.args.StandardSave(state))

held_out = [jax.jit(loss)(state["params"], *batch(text.validation, number)) for number in range(20)]
print(f"held-out loss {sum(map(float, held_out)) / len(held_out):.4f}")
if checkpoints:
    checkpoints.close()

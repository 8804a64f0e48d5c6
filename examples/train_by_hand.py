"""A GPT tuned small and trained large, each factor written by hand with its reason; depthmup gives the text alone.

    python examples/train_by_hand.py                             # about a minute on two cores, no download
    python examples/train_by_hand.py --width=256 --depth=16 --workdir=runs/by_hand    # goes on after a kill

It trains the base, a cheap size, at many learning rates and seeds together; then a larger GPT at the best rate and at
rates around it. The factors are those of `completep` (Dey et al. 2025, arXiv 2505.01618), which docs/rules.md derives
and `dm.setup("completep", ...)` finds for any model. tests/test_train_by_hand.py compares them with main.py.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

from depthmup.data import Batches, load

BASE_WIDTH, BASE_DEPTH = 32, 2  # where hyperparameters are tuned: there all factors are those of a usual GPT
CONTEXT, VOCABULARY, HEADS, BATCH = 32, 256, 4, 16
STEPS, WARMUP, B1, B2, EPS, WEIGHT_DECAY = 200, 20, 0.9, 0.95, 1e-8, 0.1


class Parameter(NamedTuple):
    shape: tuple
    mean: float  # of its initial entries
    std: float
    group: str  # of `GPT.optimizer`


class GPT(NamedTuple):
    width: int
    depth: int  # blocks, each of two branches, attention and MLP, which add to the residual stream

    def parameters(self):  # those of the blocks have a first axis over the blocks
        width, depth, head = self.width, self.depth, (HEADS, self.width // HEADS)
        block, stream = "matrix in a block", "outside"
        return {
            "embed": Parameter((VOCABULARY, width), 0, 1, stream),  # looked up, not summed: of order 1 at each width
            "positions": Parameter((CONTEXT, width), 0, 1, stream),
            # A matrix sums fan_in independent terms: 1/sqrt(fan_in) has outputs of order 1. Queries start at 0.
            "attention_norm": Parameter((depth, width), 1, 0, "norm in a block"),
            "query": Parameter((depth, width, *head), 0, 0, block),
            "key": Parameter((depth, width, *head), 0, width**-0.5, block),
            "value": Parameter((depth, width, *head), 0, width**-0.5, block),
            "out": Parameter((depth, *head, width), 0, width**-0.5, block),
            "mlp_norm": Parameter((depth, width), 1, 0, "norm in a block"),
            "mlp_in": Parameter((depth, width, 4 * width), 0, width**-0.5, block),
            "mlp_out": Parameter((depth, 4 * width, width), 0, (4 * width) ** -0.5, block),
            "norm": Parameter((width,), 1, 0, stream),
            # The same at each width: `loss` divides what it sums by m.
            "readout": Parameter((width, VOCABULARY), 0, BASE_WIDTH**-0.5, stream),
        }

    def loss(self, params, tokens, targets):
        m, m_depth = self.width / BASE_WIDTH, self.depth / BASE_DEPTH
        branch = 1 / m_depth  # what blocks learn adds up with one sign: m_depth times as many blocks, 1/m_depth of each
        # q and k learn to agree, so q . k grows as the size of a head, not as its root: 1/sqrt(head) at the base alone.
        attention = (BASE_WIDTH // HEADS) ** 0.5 / (self.width // HEADS)
        output = 1 / m  # the readout learns to agree with its input: its sum grows as the width, not as the root

        def norm(h, scale):
            return h * jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-6) * scale

        def block(h, w):
            x = norm(h, w["attention_norm"])
            q, k, v = (jnp.einsum("btw,whd->bthd", x, w[name]) for name in ("query", "key", "value"))
            scores = jnp.where(jnp.tri(CONTEXT, dtype=bool), attention * jnp.einsum("bqhd,bkhd->bhqk", q, k), -jnp.inf)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
            h = h + branch * jnp.einsum("bthd,hdw->btw", mixed, w["out"])
            x = norm(h, w["mlp_norm"])
            return h + branch * (jax.nn.gelu(x @ w["mlp_in"], approximate=False) @ w["mlp_out"]), None

        blocks = {name: params[name] for name, p in self.parameters().items() if p.group != "outside"}
        h, _ = jax.lax.scan(block, params["embed"][tokens] + params["positions"], blocks)
        logits = output * (norm(h, params["norm"]) @ params["readout"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def optimizer(self, rate):
        """AdamW, with a learning rate, an eps and a decay for each group of parameters."""
        m, m_depth = self.width / BASE_WIDTH, self.depth / BASE_DEPTH

        def adamw(lr, eps):
            def schedule(step):  # rises to the rate, falls to 0
                return lr * rate * jnp.minimum((step + 1) / WARMUP, (STEPS - step) / (STEPS - WARMUP))

            # A step takes rate x decay off a weight: 1 / lr makes it the same at each width.
            return optax.adamw(schedule, B1, B2, EPS * eps, weight_decay=WEIGHT_DECAY / lr)

        groups = {
            # Adam moves each entry by the rate, whatever the gradient. A matrix sums fan_in moves that agree with its
            # input: rate / m. eps is beside gradients, in which the factors of output and branch are.
            "matrix in a block": adamw(lr=1 / m, eps=1 / (m * m_depth)),
            "norm in a block": adamw(lr=1, eps=1 / (m * m_depth)),  # sums nothing: the same rate at each width
            "outside": adamw(lr=1, eps=1 / m),  # nor does an embedding; what the readout sums, `output` divides by m
        }  # Over depth the rates stay: `branch` does it all.
        return optax.partition(groups, {name: p.group for name, p in self.parameters().items()})

    def init(self, rate, seed):
        table = self.parameters()
        sizes = [int(np.prod(p.shape)) for p in table.values()]
        draws = jnp.split(jax.random.normal(jax.random.key(seed), sum(sizes)), np.cumsum(sizes)[:-1])
        params = {name: p.mean + p.std * z.reshape(p.shape) for (name, p), z in zip(table.items(), draws, strict=True)}
        return params, self.optimizer(rate).init(params)

    def step(self, state, rate, tokens, targets):
        params, moments = state
        loss, grads = jax.value_and_grad(self.loss)(params, tokens, targets)
        updates, moments = self.optimizer(rate).update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), loss


def sweep(gpt, log2_rates, seeds, workdir=None):
    """Train all learning rates and seeds at once, print the held-out losses, return log2 of the best rate."""
    data = load("text", context=CONTEXT)  # NumPy's docstrings, byte by byte; a batch is a function of its step alone
    rate, seed = (axis.ravel() for axis in np.meshgrid(np.exp2(log2_rates), np.arange(seeds), indexing="ij"))
    state = jax.jit(jax.vmap(gpt.init))(rate, seed)  # a training is a pure function of both: vmap makes one of all
    step = jax.jit(jax.vmap(gpt.step, in_axes=(0, 0, None, None)), donate_argnums=0)
    checkpoints = ocp.CheckpointManager(workdir.absolute() / f"{gpt.width}_{gpt.depth}") if workdir else None
    start = (checkpoints.latest_step() or 0) if checkpoints else 0
    if start:
        state = checkpoints.restore(start, args=ocp.args.StandardRestore(state))
    for number, batch in enumerate(Batches(data, BATCH).train(start, STEPS), start + 1):
        state, losses = step(state, rate, *batch)
        if number % 50 == 0:
            print(f"{gpt}, step {number}: lowest loss {np.nanmin(losses):.3f}", flush=True)
        if checkpoints and number % 50 == 0:
            checkpoints.save(number, args=ocp.args.StandardSave(state))
    if checkpoints:
        checkpoints.close()
    losses = jax.jit(jax.vmap(gpt.loss, in_axes=(0, None, None)))(state[0], *data.validation.at(np.arange(64)))
    of_rates = np.nan_to_num(losses, nan=np.inf).reshape(-1, seeds).mean(1)
    best = log2_rates[of_rates.argmin()]
    for log2, loss in zip(log2_rates, of_rates, strict=True):
        print(f"{gpt}, learning rate 2^{log2}: held-out loss {loss:.3f}{' (best)' if log2 == best else ''}")
    return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--workdir", type=Path)
    args = parser.parse_args()
    best = sweep(GPT(BASE_WIDTH, BASE_DEPTH), range(-10, -3), 2, args.workdir)
    sweep(GPT(args.width, args.depth), (best - 2, best, best + 2), 1, args.workdir)

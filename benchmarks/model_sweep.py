"""`m.sweep` of a GPT against loops that a user writes by hand, and against PyTorch.

    python -m benchmarks.model_sweep            # PyTorch: pip install -e '.[bench]', else it is left out

A GPT of 4 blocks, width 64, on bytes of NumPy's docstrings: 16 learning rates with AdamW, 100 steps of 16 sequences of
32 bytes, one seed. By hand: `jax.jit` of a whole training, a scan over its steps, called for one learning rate after
another; the same under `jax.lax.map` and `jax.vmap` over the learning rates; and a jitted step in a Python loop, as
most people write it. PyTorch trains the same sizes (torch.nn.TransformerEncoderLayer) one after another.

It prints seconds until the first trained steps (tracing and compilation), trials a minute once compiled and with
compilation, and the largest difference between `m.sweep`'s final losses and those by hand, at learning rates up to the
best one: beyond it, trainings amplify differences of rounding. Compiled programs are not kept between methods. It takes
about ten minutes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.data.text import docstrings
from depthmup.train.loop import CHUNK
from depthmup.trials.group import Runner
from depthmup.trials.plan import Group, grid_trials
from depthmup.tune.model_sweep import study_of
from experiments.gpt_linen import GPT

WIDTH, DEPTH, CONTEXT, BATCH, STEPS = 64, 4, 32, 16, 100
RATES = [2.0**x for x in np.arange(-12, -4, 0.5)]
TEXT = np.asarray(docstrings(), np.int32)


def batches(step: jax.Array) -> tuple[jax.Array, jax.Array]:
    text = jnp.asarray(TEXT)
    starts = jax.random.randint(jax.random.fold_in(jax.random.key(1), step), (BATCH, 1), 0, len(TEXT) - CONTEXT - 1)
    windows = text[starts + jnp.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, 1:]


def loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def setup() -> dm.Setup:
    tokens = jnp.zeros((1, CONTEXT), jnp.int32)
    return dm.setup("depth_mup", GPT, tokens, width=WIDTH, depth=DEPTH, base=(WIDTH, DEPTH), fan_in_init=False)


def step_of(m: dm.Setup, rate: Any) -> Callable[..., Any]:
    """(params, optimizer state, number of the step) -> (params, optimizer state, loss), as a user writes it."""

    def step(params: Any, state: Any, number: Any) -> Any:
        x, y = batches(number)
        value, grads = jax.value_and_grad(lambda params: loss(m.apply({"params": params}, x), y))(params)
        updates, state = m.optimizer("adamw", rate).update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def whole(m: dm.Setup, params: Any) -> Callable[[Any], jax.Array]:
    """learning rate -> losses (STEPS,), one program for the whole training."""

    def train(rate: Any) -> jax.Array:
        step = step_of(m, rate)

        def advance(carry: Any, number: Any) -> Any:
            params, state, value = step(*carry, number)
            return (params, state), value

        return jax.lax.scan(advance, (params, m.optimizer("adamw", rate).init(params)), jnp.arange(STEPS))[1]

    return train


def by_hand(kind: str) -> tuple[float, float, np.ndarray]:
    """(seconds with compilation, seconds once compiled, last losses) of all learning rates."""
    start = time.perf_counter()
    m = setup()
    params, rates = m.init(jax.random.key(0))["params"], jnp.asarray(RATES, jnp.float32)
    train = whole(m, params)
    if kind == "jitted training":
        program = jax.jit(train)
        run = lambda: np.stack([np.asarray(program(rate)) for rate in rates])  # noqa: E731
    elif kind == "jitted step":
        step = jax.jit(lambda params, state, number, rate: step_of(m, rate)(params, state, number))

        def run() -> np.ndarray:
            losses = []
            for rate in rates:
                carry, values = (params, m.optimizer("adamw", rate).init(params)), []
                for number in range(STEPS):
                    *carry, value = step(*carry, jnp.int32(number), rate)
                    values.append(value)
                losses.append(np.asarray(jax.device_get(values)))
            return np.stack(losses)
    else:
        over = jax.vmap(train) if kind == "vmap" else lambda rates: jax.lax.map(train, rates)
        program = jax.jit(over)
        run = lambda: np.asarray(program(rates))  # noqa: E731
    losses = run()
    cold = time.perf_counter() - start
    return cold, min(_timed(run) for _ in range(2)), losses[:, -STEPS // 10 :].mean(axis=1)


def swept() -> tuple[float, float, float, np.ndarray]:
    """(seconds until the first stretch of steps is done, seconds with compilation and all that is stored, seconds once
    compiled, last losses)"""
    start = time.perf_counter()
    m = setup()
    first: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        shape: dict[str, Any] = {"widths": (WIDTH,), "depths": ()}
        options = {"learning_rates": RATES, "seeds": 1, "steps": STEPS, **shape}
        result = m.sweep(loss, batches, workdir=folder, progress=False, **options)
        cold = time.perf_counter() - start
    study = study_of(setup(), loss, batches, **options)
    group = Group(tuple(grid_trials(study)), len(RATES), study)
    runner, begin = Runner(), time.perf_counter()
    runner.train(group, lambda share: first.append(time.perf_counter() - begin))
    warm = min(_timed(lambda: runner.train(group)) for _ in range(2))
    rows = result.rows.sort_values("learning_rate")
    return first[0] if first else float("nan"), cold, warm, rows["last_loss"].to_numpy()


def torch_seconds() -> float:
    """Seconds of all learning rates in PyTorch, one after another, on all threads."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            layer = lambda: nn.TransformerEncoderLayer(  # noqa: E731
                WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
            )
            self.blocks = nn.ModuleList([layer() for _ in range(DEPTH)])
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
            self.mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)

        def forward(self, x: Any) -> Any:
            h = self.tokens(x) + self.positions(torch.arange(CONTEXT))
            for block in self.blocks:
                h = block(h, src_mask=self.mask, is_causal=True)
            return self.head(self.norm(h))

    text = torch.from_numpy(TEXT.astype(np.int64))

    def run() -> None:
        for rate in RATES:
            net = Net()
            optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.0)
            for _ in range(STEPS):
                starts = torch.randint(0, len(TEXT) - CONTEXT - 1, (BATCH, 1))
                window = text[starts + torch.arange(CONTEXT + 1)]
                value = nn.functional.cross_entropy(net(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
                optimizer.zero_grad()
                value.backward()
                optimizer.step()

    return min(_timed(run) for _ in range(2))


def _timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    prepare_cpu()
    first, cold, warm, losses = swept()
    minutes = lambda seconds: f"{60 * len(RATES) / seconds:8.0f}"  # noqa: E731
    print(f"{len(RATES)} trials of {STEPS} steps (a call of the engine's program takes {CHUNK})")
    print(f"{'':18}trials a minute: once compiled, with compilation")
    print(f"{'m.sweep':18}{minutes(warm)} {minutes(cold)}   first steps after {first:.1f} s")
    for kind in ("jitted training", "map", "vmap", "jitted step"):
        hand_cold, hand_warm, hand = by_hand(kind)
        difference = np.abs(hand - losses)[: losses.argmin() + 1].max()
        print(
            f"{kind:18}{minutes(hand_warm)} {minutes(hand_cold)}   m.sweep {hand_warm / warm:.2f} x as fast compiled, "
            f"{hand_cold / cold:.2f} x with compilation; losses differ by {difference:.1g}"
        )
    try:
        seconds = torch_seconds()
    except ImportError:
        print("PyTorch is not installed: pip install -e '.[bench]'")
        return
    print(
        f"{'PyTorch':18}{minutes(seconds)}            m.sweep {seconds / warm:.2f} x as fast compiled, "
        f"{seconds / cold:.2f} x with compilation"
    )


if __name__ == "__main__":
    main()

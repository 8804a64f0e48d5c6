"""Kinds of models whose roles need no override."""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import depthmup as dm
from tests.foreign.roles import blocks, by_path, infer, z

KEY = jax.random.key(0)


def test_llama():
    """Grouped queries (the heads of keys and values fixed), a fused gate, norms without bias."""

    def init(w, d):
        attn = {"q": {"kernel": z((w, 8, w // 8))}, "kv": {"kernel": z((w, 2, 2, w // 8))},
                "o": {"kernel": z((8, w // 8, w))}}  # fmt: skip
        one = {"attn": attn, "mlp": {"gate_up": z((w, 2, 4 * w)), "down": z((4 * w, w))}, "norm": {"scale": z(w)}}
        return {"embed_tokens": z((50, w)), "layers": blocks(one, d), "norm": {"weight": z(w)}, "lm_head": z((w, 50))}

    specs = by_path(dm.infer_specs(init, layout="in_out", width=32, depth=2))
    assert {s.role for s in specs.values() if s.in_branch} == {"hidden", "vector"}
    assert {(specs[f"layers/0/attn/{k}/kernel"].fan_in, specs[f"layers/0/attn/{k}/kernel"].fan_out) for k in "qo"} == {
        (32, 32)
    }
    assert (specs["embed_tokens"].role, specs["lm_head"].role, specs["norm/weight"].role) == (
        "input", "readout", "vector",
    )  # fmt: skip


@pytest.mark.parametrize("cell", [nn.OptimizedLSTMCell, nn.GRUCell])
def test_recurrent(cell):
    """Cells of Flax; what reads the inputs in is not in a branch."""

    class Net(nn.Module):
        w: int

        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, name="head")(nn.RNN(cell(self.w), name="rnn")(x))

    inferred = infer(lambda w, d: Net(w).init(KEY, jnp.ones((1, 4, 5)))["params"], residual=False)
    kernels = {path: role for path, role in inferred.items() if path.endswith("kernel") and "head" not in path}
    assert set(kernels.values()) == {"input", "hidden"}
    assert all((role == "input") == ("/i" in path) for path, role in kernels.items())
    assert {role for path, role in inferred.items() if path.endswith("bias")} == {"vector", "scalar"}


@pytest.mark.parametrize("layout", ["in_out", "out_in"])
def test_convnext(layout):
    """Depthwise kernels and the scale of layers are vectors in all but name: one axis grows, the fan-in is fixed."""
    order = (0, 1, 2, 3) if layout == "in_out" else (3, 2, 0, 1)
    conv = lambda *shape: z(tuple(shape[a] for a in order))  # noqa: E731
    dense = lambda a, b: z((a, b) if layout == "in_out" else (b, a))  # noqa: E731

    def init(w, d):
        block = lambda n: {"dw": conv(7, 7, 1, n), "up": dense(n, 4 * n), "down": dense(4 * n, n), "gamma": z(n)}  # noqa: E731
        stages = [{"blocks": blocks(block(w << i), d), "norm": z(w << i)} for i in range(3)]
        return {"stem": conv(4, 4, 3, w), "stages": stages, "head": dense(4 * w, 10),
                "downsample": [conv(2, 2, w << i, w << i + 1) for i in (0, 1)]}  # fmt: skip

    inferred = infer(init, layout=layout)
    assert inferred["stages/1/blocks/0/dw"] == "branch/input"
    assert (inferred["stages/2/blocks/1/up"], inferred["downsample/1"]) == ("branch/hidden", "hidden")
    assert (inferred["stages/0/norm"], inferred["stem"], inferred["head"]) == ("vector", "input", "readout")


class Layer(NamedTuple):
    w: Any
    b: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    read: Any
    layers: Any
    out: Any


def test_tuples_and_dataclasses():
    inferred = infer(lambda w, d: Model(z((5, w)), tuple(Layer(z((w, w)), z(w)) for _ in range(d)), z((w, 3))))
    assert inferred == {"read": "input", "layers/0/w": "branch/hidden", "layers/0/b": "branch/vector",
                     "layers/1/w": "branch/hidden", "layers/1/b": "branch/vector", "out": "readout"}  # fmt: skip

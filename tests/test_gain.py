"""He's variance for any activation, measured on models that are not ours."""

import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup as dm
from depthmup.models.layers import stationary_gain

X = jax.random.normal(jax.random.key(1), (8, 16))
KEY = jax.random.key(0)
GAINS = {
    "relu": (nn.relu, 2.0),
    "gelu": (lambda z: nn.gelu(z, approximate=False), stationary_gain("gelu")),
    "gelu by tanh": (nn.gelu, 2.352),
    "tanh": (jnp.tanh, stationary_gain("tanh")),
    "erf": (jax.lax.erf, stationary_gain("erf")),
    "none": (lambda z: z, 1.0),
    "square": (jnp.square, 1 / 3),
    "leaky": (lambda z: nn.leaky_relu(z, 0.5), 1.6),
    "two": (lambda z: nn.relu(-nn.relu(-z) + 2.0 * nn.relu(z)), 0.5),  # 2 relu(z)
}


class Net(nn.Module):
    """read-in, `depth` layers, readout."""

    width: int
    depth: int
    phi: object
    gain: float
    norm: str = "none"
    gated: bool = False
    scan: bool = False

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.variance_scaling(self.gain, "fan_in", "normal")
        z = nn.Dense(self.width, name="read_in")(x)
        if self.scan:
            layer = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth)
            z, _ = layer(self.phi, init, name="layers")(z, None)
        for i in range(0 if self.scan else self.depth):
            if self.norm != "none":
                z = nn.LayerNorm(use_scale=self.norm != "bare", use_bias=self.norm == "full", name=f"norm_{i}")(z)
            y = self.phi(z)
            y = y * nn.Dense(self.width, name=f"gate_{i}")(x) if self.gated else y
            z = nn.Dense(self.width, kernel_init=init, name=f"layer_{i}")(y)
        return nn.Dense(5, name="head")(z)


class Layer(nn.Module):
    phi: object
    kernel: object

    @nn.compact
    def __call__(self, z, _):
        return nn.Dense(z.shape[-1], kernel_init=self.kernel, name="dense")(self.phi(z)), None


def audit(phi, gain, width=128, **options):
    make = lambda w, d: Net(w, d, phi, gain, **options)  # noqa: E731
    return dm.setup("sp", make, X, width=width, depth=2, residual=False, fan_in_init=False).audit_gain()


@pytest.mark.parametrize("name", GAINS)
def test_activations(name):
    """1 / <phi(z)^2> of any function, without a name; a quarter more or less is off."""
    phi, needed = GAINS[name]
    right = audit(phi, needed)
    assert right.ok
    assert [row.path for row in right.rows] == ["layer_0/kernel", "layer_1/kernel"]
    assert [1 / row.q for row in right.rows] == pytest.approx([needed] * 2, rel=1e-3)
    assert right.rows[0].gain == pytest.approx(needed, rel=0.05)
    for wrong in (0.75, 1.33):
        assert not audit(phi, wrong * needed).ok


@pytest.mark.parametrize("norm", ["full", "scale", "bare"])
def test_behind_a_norm(norm):
    """z is what the norm gives, with its scale and bias or without."""
    assert [row.q for row in audit(nn.relu, 2.0, norm=norm).rows] == pytest.approx([0.5] * 2, rel=2e-3)


def test_gates_and_scans():
    """A gate is another z; the layers of a scan are one parameter."""
    rows = {row.path: row for row in audit(nn.silu, 2.81, gated=True).rows}
    assert rows["layer_1/kernel"].q == pytest.approx(0.3558, rel=0.02)
    (row,) = audit(nn.relu, 2.0, scan=True).rows
    assert (row.path, row.ok, row.q) == ("layers/dense/kernel", True, pytest.approx(0.5, rel=1e-3))


def test_the_right_gain_keeps_the_signal():
    """Against simulation: the mean square of a pre-activation with variance 1 at the input, one layer on."""
    z = jax.random.normal(KEY, (64, 2048))
    for phi, needed in GAINS.values():
        w = jax.random.normal(jax.random.key(2), (2048, 2048)) * (needed / 2048) ** 0.5
        assert jnp.square(phi(z) @ w).mean() == pytest.approx(1, abs=0.05)


def test_what_is_off_has_a_name():
    """Lecun's init behind a ReLU: the signal is multiplied by sqrt(1/2) in each layer."""
    report = audit(nn.relu, 1.0)
    (line,) = str(report).splitlines()[1:]
    assert line.split()[0] == "layer_*/kernel"
    assert [float(number) for number in line.split()[1:]] == pytest.approx([1, 2, 0.707], rel=0.05)
    assert "keep the size" in str(audit(nn.relu, 2.0))


class Pooled(nn.Module):
    """A pooling mixes units, and a kernel that starts at 0 has no gain."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        z = nn.Conv(self.width, (3, 3), name="read_in")(x)
        z = nn.Conv(self.width, (3, 3), name="pooled")(nn.max_pool(nn.relu(z), (2, 2)))
        z = nn.Conv(self.width, (3, 3), kernel_init=nn.initializers.zeros, name="zero")(nn.relu(z))
        z = nn.Conv(self.width, (3, 3), kernel_init=nn.initializers.he_normal(), name="he")(nn.relu(z))
        return nn.Dense(5, name="head")(z.mean((1, 2)))


def test_what_is_not_judged():
    images = jnp.ones((2, 8, 8, 3))
    m = dm.setup("sp", lambda w, d: Pooled(w, d), images, width=32, depth=1, residual=False, fan_in_init=False)
    assert [row.path for row in m.audit_gain().rows] == ["he/kernel"]
    assert m.audit_gain().rows[0].gain == pytest.approx(2, rel=0.1)  # fan-in: 9 x 32


def test_another_model():
    m = dm.setup("sp", lambda w, d: Net(w, d, nn.relu, 2.0), X, width=32, depth=2, residual=False, fan_in_init=False)
    with pytest.raises(dm.SpecError, match="different shapes"):
        dm.audit_gain(m.specs, lambda params, x: x, jax.tree.map(np.zeros_like, m.at(64, 2).init(KEY)["params"]), X)


def test_setup_warns_of_plain_networks():
    """Under am_mup, whose law is that of layers that keep the signal; residual branches may start as they like."""
    make = lambda gain: lambda w, d: Net(w, d, nn.relu, gain)  # noqa: E731
    shape = {"width": 128, "depth": 4, "base": (64, 2)}
    with pytest.warns(dm.SetupWarning, match=r"He's variance .*\n.*\n *layer_\*/kernel +(1|0\.9)\S* +2 "):
        dm.setup("am_mup", make(1.0), X, **shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error", dm.SetupWarning)
        for name, gain, options in (("am_mup", 2.0, {}), ("sp", 1.0, {}), ("am_mup", 1.0, {"fan_in_init": False})):
            dm.setup(name, make(gain), X, **shape, **options)

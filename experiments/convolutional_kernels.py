"""Lazy kernels of convolutional residual networks: convergence in depth and in width (paper A, Appendix K.1).

    python -m experiments.theory_checks convolutional_kernels        (a minute)

Four handwritten digits of 8x8 pixels, 3x3 filters, ReLU, beta^2 = 2 (He's gain); docs/theory.md section 2.2.
`ResidualCNN` at initialization, at finite width against the limit of its depth: the mean squared errors of H, the last
layer's feature kernel, and of the NTK fall as 1/N. The limits of finite depth approach that of infinite depth
as 1/L.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import depthmup as dm
from depthmup.data import digits
from depthmup.data.dataset import Split
from depthmup.fit import ensemble_errors
from depthmup.models import ResidualCNN, model_specs
from depthmup.models.layers import Padding
from depthmup.rules.specs import is_spec
from depthmup.theory import lazy_conv_kernels
from experiments.networks import noisy_law
from experiments.output import Row, about, of_law

GAIN, TAPS = 2.0, 9


def images(samples: int) -> np.ndarray:
    """Normalized digits, (samples, 8, 8, 1): the mean image subtracted, then divided by the standard deviation."""
    data = digits.load_digits()
    assert isinstance(data.train, Split)  # in memory
    return ((data.train.inputs[:samples] - data.mean) / data.std).astype(np.float32)


def limit(x: np.ndarray, depth: int | None, padding: Padding) -> dict[str, np.ndarray]:
    """The feature kernel of the last layer and the NTK, (P, P) each."""
    kernels = lazy_conv_kernels(x, depth, "relu", GAIN**0.5, padding=padding, times=(1,))
    return {"H": kernels.H[0], "NTK": kernels.ntk}


def networks(
    x: np.ndarray, width: int, depth: int, seeds: int, padding: Padding, first_seed: int
) -> dict[str, np.ndarray]:
    """The same of networks at initialization, (seeds, P, P), with the learning rates of docs/theory.md section 0."""
    model = ResidualCNN(width, depth, 1, "relu", kernels=(3,), gain=GAIN, padding=padding, scan=False)
    specs, p = model_specs(model, x.shape[1:]), dm.parameterization("depth_mup")
    forward = p.forward_factors(width=width, depth=depth)
    # The canonical form's learning rates over the package's, by role.
    canonical = {"hidden": GAIN / TAPS, "input": 1 / (TAPS * x.shape[-1]), "readout": 1.0}
    rates = jax.tree.map(
        lambda spec, rate: rate * canonical[spec.role], specs, dm.factors(p, specs).lr, is_leaf=is_spec
    )
    run, examples = model.forward(forward), jnp.asarray(x)

    @jax.jit
    def one(seed: jax.Array) -> dict[str, jax.Array]:
        params = dm.rescale(p, specs, model.init(jax.random.key(seed), examples, forward)["params"])
        ntk = dm.empirical_ntk(lambda w, inputs: run(w, inputs, None)[0], params, examples, rates=rates)
        return {"H": dm.network_kernels(run, params, examples, phi=model.phi).H[-1], "NTK": ntk["all"]}

    # One seed at a time is faster than a vmap over seeds.
    kernels = [one(np.uint32(first_seed + i)) for i in range(seeds)]
    return {name: np.stack([of_seed[name] for of_seed in kernels]).astype(float) for name in ("H", "NTK")}


def rows(
    samples: int = 4,
    widths: Sequence[int] = (16, 32, 64, 128, 256),
    depth: int = 4,
    seeds: int = 300,
    depths: Sequence[int] = (128, 256),
    padding: Padding = "circular",
) -> list[Row]:
    """widths, depth, seeds, padding: of the networks. depths: between which the slope in depth is taken."""
    x, result = images(samples), []
    measured = [networks(x, width, depth, seeds, padding, i * seeds) for i, width in enumerate(widths)]
    exact = limit(x, depth, padding)
    for name, kernel in exact.items():
        size = float(np.mean(kernel**2))
        mse, error = np.array([ensemble_errors(networks[name], kernel).squared_error for networks in measured]).T / size
        statement = f"convolutions, {name}: squared error, slope in N"
        result.append(Row("2.2", statement, about(-1, 0.3), *of_law(noisy_law(widths, mse, error))))
    for kind in ("circular", "zero"):
        infinite, *finite = (limit(x, at, kind) for at in (None, *depths))
        for name in exact:
            first, last = (np.linalg.norm(kernels[name] - infinite[name]) for kernels in finite)
            slope = float(np.log(last / first) / np.log(depths[1] / depths[0]))
            statement = f"convolutions, {kind} padding, {name}: distance to L = inf, slope in L"
            result.append(Row("2.2", statement, about(-1, 0.02), slope))
    return result

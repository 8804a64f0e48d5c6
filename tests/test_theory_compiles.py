"""The theory is called in loops over hyperparameters: one shape is compiled once."""

import jax
import numpy as np

from depthmup.theory import dmft, lazy_conv_kernels, lazy_kernels, lazy_predictor, linear_dmft, one_step_linear


def test_second_calls_compile_nothing(caplog):
    """Not even what prepares them."""
    x, y = np.random.default_rng(0).normal(size=(2, 3, 2)), np.ones(2)
    calls = [
        lambda eta0: linear_dmft(np.eye(2), y, depth=2, steps=3, eta0=eta0),
        lambda eta0: linear_dmft(np.eye(2), y, depth=2, steps=3, eta0=eta0, gamma0=0),
        lambda eta0: dmft(np.eye(2), y, depth=2, steps=3, eta0=eta0, samples=400, replicates=1),
        lambda eta0: lazy_predictor(np.eye(2), y, eta0=eta0, steps=3),
        lambda eta0: one_step_linear(eta0, 4),
        lambda eta0: lazy_kernels(np.eye(2), 2, "tanh", beta=eta0),
        lambda eta0: lazy_conv_kernels(x, 2, beta=eta0),
    ]
    for call in calls:
        call(0.1)
    with jax.log_compiles():
        jax.jit(lambda x: x + 1)(1)
        assert "Finished XLA compilation" in caplog.text  # so that it would be seen
        caplog.clear()
        for call in calls:
            call(0.2)
    assert "Finished XLA compilation" not in caplog.text

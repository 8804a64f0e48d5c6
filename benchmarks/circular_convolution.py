"""Small circular convolutions on a CPU: one product (`models.convolution.circular_conv`) against wrapping the image.

    taskset -c 0 python -m benchmarks.circular_convolution

prints the milliseconds of a training step (value and gradients) of 16 residual convolutions, scanned, for a layer, the
smallest of REPEATS. Batch 128, kernel 3.
"""

from __future__ import annotations

import time
from unittest import mock

from depthmup.backend import prepare_cpu

prepare_cpu()
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from depthmup.models import convolution  # noqa: E402

LAYERS, REPEATS = 16, 20
SIZES = ((8, 16), (8, 32), (16, 8), (16, 16), (16, 32), (32, 16))  # (pixels of a side, channels)


def milliseconds(pixels: int, channels: int, small: int) -> float:
    """Of a layer, where images of up to `small` numbers are convolved by one product."""
    kernels = jax.random.normal(jax.random.key(0), (LAYERS, 3, 3, channels, channels)) / (9 * channels) ** 0.5
    images = jax.random.normal(jax.random.key(1), (128, pixels, pixels, channels))

    def block(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, None]:
        numbers = ("NHWC", "HWIO", "NHWC")
        convolved = convolution.circular_conv(jax.nn.relu(x), kernel, (1, 1), [(1, 1)] * 2, dimension_numbers=numbers)
        return x + 0.3 * convolved, None

    def loss(kernels: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.scan(block, images, kernels)[0] ** 2)

    with mock.patch.object(convolution, "SMALL", small):
        step = jax.jit(jax.value_and_grad(loss)).lower(kernels).compile()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        jax.block_until_ready(step(kernels))
        times.append(time.perf_counter() - begin)
    return 1000 * min(times) / LAYERS


def main() -> None:
    print("pixels  channels  one product  wrapped   (ms for a layer)")
    for pixels, channels in SIZES:
        product, wrapped = (milliseconds(pixels, channels, small) for small in (2**40, 0))
        print(f"{pixels:6}  {channels:8}  {product:11.2f}  {wrapped:7.2f}", flush=True)


if __name__ == "__main__":
    main()

"""Checks of the arguments of the theory's functions, with their errors and warnings."""

from __future__ import annotations

import warnings
from typing import Any, Literal, get_args

import numpy as np
from jax.typing import ArrayLike

from depthmup.names import FINITE, Range, floats, unknown
from depthmup.theory.precision import concrete

ReadoutName = Literal["phi", "linear"]
READOUTS: tuple[ReadoutName, ...] = get_args(ReadoutName)
GROUPS = ("readin", "branch", "readout")
ALPHA = Range(low=0.5, most=1)
LIMIT = Range(positive=True, infinite=True)  # of memory


def check_array(name: str, values: Any, within: Range = FINITE) -> None:
    """Raises ValueError for values that are no numbers or out of range; not for traced ones."""
    if concrete(values):
        within.array(name, values)


def check_number(name: str, value: Any, within: Range = FINITE) -> None:
    """`check_array` of one number."""
    check_array(name, value, within)
    if np.ndim(value):
        raise ValueError(f"{name} must be one number, got shape {np.shape(value)}")


def check_readout_name(readout: ReadoutName) -> None:
    if readout not in READOUTS:
        raise unknown("readout", readout, READOUTS)


def check_kernel(Kx: ArrayLike, name: str = "Kx") -> None:
    """Raises ValueError unless the matrix is square, symmetric and positive semi-definite.

    If the matrix is traced, only its shape is checked.
    """
    shape = np.shape(Kx) if not concrete(Kx) else floats(name, Kx).shape
    if len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
        raise ValueError(f"{name} must be a square kernel (samples, samples), got shape {shape}")
    if not concrete(Kx):
        return
    K, tolerance = np.asarray(Kx, np.float64), rounding(Kx)
    if not np.isfinite(K).all():
        raise ValueError(f"{name} has entries that are not finite")
    size = max(float(np.abs(np.diag(K)).max()), 1e-300)
    if np.abs(K - K.T).max() > tolerance * size:
        i, j = np.unravel_index(np.abs(K - K.T).argmax(), shape)
        raise ValueError(f"{name} must be symmetric: entry ({i}, {j}) is {K[i, j]:g}, entry ({j}, {i}) {K[j, i]:g}")
    try:  # much faster than to compute the eigenvalues
        np.linalg.cholesky(K + tolerance * size * np.eye(len(K)))
    except np.linalg.LinAlgError:
        least = float(np.linalg.eigvalsh(K)[0])
        raise ValueError(f"{name} must be positive semi-definite: its smallest eigenvalue is {least:.3g}") from None


def rounding(kernel: Any) -> float:
    """By how much an eigenvalue may be negative in this precision, relative to the kernel's largest entry."""
    dtype = getattr(kernel, "dtype", np.dtype(float))
    return max(1e-8, max(np.shape(kernel)) * float(np.finfo(dtype).eps)) if dtype.kind == "f" else 1e-8


def check_memory(size: float, limit: float, what: str, way_out: str) -> None:
    """Raises ValueError if an estimate in bytes is above a limit in GiB."""
    LIMIT.check("memory_limit", limit)
    if size > limit * 2**30:
        raise ValueError(
            f"{what} would need about {size / 2**30:.1f} GiB, above memory_limit={limit:g}: raise it, or {way_out}"
        )


def warn_unstable(eta0: Any, largest: Any, momentum: Any = 0.0, stacklevel: int = 4) -> None:
    """Warns if gradient descent with a constant kernel diverges: if eta0 * largest is above 2 (1 + momentum).

    eta0: the learning rate, one number or that of each step.
    largest: the largest eigenvalue of Theta times the samples' weights, such as Theta / P; also one or of each step.

    It does not warn if a value is traced.
    """
    if not concrete(eta0, largest, momentum):
        return
    rates, bounds = np.broadcast_arrays(eta0, 2 * (1 + momentum) / np.maximum(largest, 1e-300))
    if (rates > bounds).any():
        worst = np.argmax(rates / bounds)
        rate, bound = rates.flat[worst], bounds.flat[worst]
        warnings.warn(
            f"gradient descent diverges in the lazy limit: eta0 = {rate:.4g} is above {bound:.4g}, 2 (1 + momentum) "
            "over the largest eigenvalue of the NTK times the samples' weights (1 / P)",
            stacklevel=stacklevel,
        )

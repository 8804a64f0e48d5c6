"""What vendors say of their accelerators, and the TPU slices that can be had."""

from __future__ import annotations

from typing import NamedTuple

from depthmup.names import unknown


class Chip(NamedTuple):
    """One device of JAX.

    peak: dense bfloat16 operations per second. memory: bytes of HBM.
    """

    peak: float
    memory: float


class Slices(NamedTuple):
    """The slices of one kind of TPU.

    shapes: such as "4x4". megacore: a chip has two cores, which are one device of JAX, and libtpu must be told so.
    """

    shapes: tuple[str, ...]
    megacore: bool = False


# A device has the first entry whose name its `device_kind` contains. TPUs: cloud.google.com/tpu/docs/{v6e,v5p,v5e,v4}
# (v3: a device is one of a chip's two cores). GPUs: NVIDIA's data sheets of the SXM boards.
CHIPS = {
    "TPU v6": Chip(918e12, 32 * 2**30),
    "TPU v5 lite": Chip(197e12, 16 * 2**30),
    "TPU v5e": Chip(197e12, 16 * 2**30),
    "TPU v5": Chip(459e12, 95 * 2**30),  # v5p
    "TPU v4": Chip(275e12, 32 * 2**30),
    "TPU v3": Chip(61.5e12, 16 * 2**30),
    "B200": Chip(2250e12, 180e9),
    "H200": Chip(989e12, 141e9),
    "H100": Chip(989e12, 80e9),
    "A100": Chip(312e12, 80e9),
    "V100": Chip(125e12, 32e9),
}
FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16")
SLICES = {
    "v5e": Slices(FLAT),
    "v6e": Slices(FLAT),
    "v4": Slices(CUBES, megacore=True),
    "v5p": Slices(CUBES, megacore=True),
}


def chip_of(kind: str) -> Chip | None:
    """The chip of a `device_kind`; None if it is not in CHIPS."""
    return next((chip for name, chip in CHIPS.items() if name in kind), None)


def check_slice(name: str) -> None:
    """Raises ValueError, with the nearest name, if this is no slice, such as "v5e:4x4"."""
    known = [f"{chip}:{shape}" for chip, slices in SLICES.items() for shape in slices.shapes]
    if name not in known:
        raise unknown("topology", name, known)

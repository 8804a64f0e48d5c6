"""Encoded image -> pixels, in worker processes: crop and resize with Pillow while decoding."""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image

from depthmup.data.augment import RATIOS

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


def centre_box(width: int, height: int, centre: float) -> Box:
    side = centre * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, crop: tuple[float, float], rng: np.random.Generator) -> Box:
    """A box of a share of the area uniform in `crop`; augment.py draws boxes of whole pixels on the device."""
    area = width * height * rng.uniform(*crop)
    ratio = math.exp(rng.uniform(math.log(RATIOS[0]), math.log(RATIOS[1])))
    w, h = min(width, math.sqrt(area * ratio)), min(height, math.sqrt(area / ratio))
    left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
    return left, top, left + w, top + h


def decode(
    data: bytes,
    size: int,
    crop: tuple[float, float] = (1.0, 1.0),
    rng: np.random.Generator | None = None,
    channels: int = 3,
    centre: float = 0.875,
) -> np.ndarray:
    """Bytes of an image file -> (size, size, channels) uint8; channels: 3, or 1 for grey.

    For evaluation (rng is None) the shorter side is resized to size / centre and the centre is cropped; an image that
    already has the right size stays as it is. For training a random box is cropped and resized: its share of the area
    is uniform in `crop`, its aspect ratio is log-uniform in RATIOS, and it is clipped to the image. With crop
    (1, 1) training crops as evaluation does.
    """
    with Image.open(io.BytesIO(data)) as image:
        full_size = image.size
        full_box: Box = (0.0, 0.0, float(full_size[0]), float(full_size[1]))
        if rng is not None and crop != (1.0, 1.0):
            box = random_box(*full_size, crop, rng)
        elif full_size == (size, size):
            box = full_box
        else:
            box = centre_box(*full_size, centre)
        # Decoding a JPEG at 1/2, 1/4 or 1/8 of its size, where this leaves enough pixels, is several times faster.
        zoom = max(1e-9, min(1.0, size / min(box[2] - box[0], box[3] - box[1])))
        image.draft("RGB" if channels == 3 else "L", (math.ceil(full_size[0] * zoom), math.ceil(full_size[1] * zoom)))
        shrunk = image.size[0] / full_size[0], image.size[1] / full_size[1]
        pixels = image.convert("RGB" if channels == 3 else "L")
        if pixels.size == (size, size) and box == full_box:
            return np.asarray(pixels).reshape(size, size, channels)
        scaled = (box[0] * shrunk[0], box[1] * shrunk[1], box[2] * shrunk[0], box[3] * shrunk[1])
        resized = pixels.resize((size, size), Image.Resampling.BILINEAR, box=scaled, reducing_gap=2.0)
        return np.asarray(resized).reshape(size, size, channels)

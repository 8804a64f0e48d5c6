"""The box of an image that is cropped: the centre or a random one, and the aspect ratios of all random boxes."""

from __future__ import annotations

import math

import numpy as np

RATIOS = (3 / 4, 4 / 3)  # smallest and largest ratio of width to height of a random crop
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

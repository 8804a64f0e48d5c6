"""Random augmentation of a batch of images, inside the jitted training step and on its device.

The distributions are torchvision's (RandomHorizontalFlip, RandomRotation, RandomAffine, RandomResizedCrop,
ColorJitter), with three differences: all geometric changes together resample the image once, bilinearly (RandomRotation
and RandomAffine take the nearest pixel by default); pixels are not rounded to whole numbers in between; and the colours
change in a fixed order (ColorJitter shuffles the order).

dm-pix is not used: its colours are tf.image's, not torchvision's, and its affine_transform also interpolates across the
channels, which makes it many times slower than map_coordinates.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from depthmup.declare import declared, key

# The number that each drawn quantity folds into the key of its image: switching one on leaves the others as they were.
FLIP, ROTATE, SHEAR, SCALE, AREA, RATIO, TOP, LEFT, BRIGHTNESS, CONTRAST, SATURATION = range(11)
RATIOS = (3 / 4, 4 / 3)  # smallest and largest ratio of width to height of a random crop
GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue in grey (Rec. 601, as in PIL)


@dataclasses.dataclass(frozen=True)
class Augment:
    """The random changes of an image, in this order: crop, flip, rotation, shear, scale, then the colours. It is a
    config's `data.augment`.

    All draws are uniform. Images are rotated about their centre and sheared along x. The box of a crop has an aspect
    ratio log-uniform in RATIOS, whole pixels and a uniform place inside the image. A side too long for the image
    is cut to it (torchvision draws again, up to ten times). One channel is its own grey image.
    """

    flip: bool = key(False, "images are mirrored left to right, half of the time")
    rotate: float = key(0.0, "degrees: the angle is drawn from [-rotate, rotate]", low=0, most=180)
    shear: float = key(0.0, "degrees: the angle is drawn from [-shear, shear]", low=0, most=45)
    scale: tuple[float, float] = key((1.0, 1.0), "the range of the factor of a zoom")
    crop: tuple[float, float] = key(
        (1.0, 1.0), "the range of the share of the area of a random crop, which is resized to the whole"
    )
    brightness: float = key(0.0, "a factor from [1 - brightness, 1 + brightness] multiplies the image", low=0, most=1)
    contrast: float = key(0.0, "a factor drawn likewise blends with the mean of the grey image", low=0, most=1)
    saturation: float = key(0.0, "a factor drawn likewise blends with the grey image", low=0, most=1)

    def __post_init__(self) -> None:
        """Raises ValueError naming the field that is out of range."""
        for name, declaration in declared(type(self)).items():
            declaration.check(f"augment.{name}", getattr(self, name))
        for name, limit, rule in (("scale", math.inf, ""), ("crop", 1.0, " <= 1")):
            pair = getattr(self, name)
            if not (isinstance(pair, tuple) and len(pair) == 2 and 0 < pair[0] <= pair[1] <= limit):
                raise ValueError(f"augment.{name} must be a pair (low, high) with 0 < low <= high{rule}, got {pair}")


NONE = Augment()


def augment(key: jax.Array, images: jax.Array, how: Augment, places: jax.Array | None = None) -> jax.Array:
    """images (batch, height, width, channels), uint8 or float in 0..255 -> float32 of the same shape in 0..255.

    The result for an image depends on the key, the image and its place in the batch alone. Pixels from outside the
    image are 0.

    places: (batch,) int, the images' places in the whole batch, if `images` is a part of it; None: 0, 1, 2, ...
    Raises ValueError if the shape does not fit; NONE takes every shape.
    """
    if how == NONE:
        return images.astype(jnp.float32)
    if images.ndim != 4:
        raise ValueError(f"augment needs images (batch, height, width, channels), got shape {images.shape}")
    if (how.contrast or how.saturation) and images.shape[-1] not in (1, 3):
        raise ValueError(f"augment.contrast and .saturation need 1 or 3 channels, got {images.shape[-1]}")
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(images)) if places is None else places)
    return jax.vmap(lambda k, image: _recoloured(k, _moved(k, image, how), how))(keys, images.astype(jnp.float32))


def _draw(key: jax.Array, quantity: int, low: float | jax.Array, high: float | jax.Array) -> jax.Array:
    return jax.random.uniform(jax.random.fold_in(key, quantity), (), jnp.float32, low, high)


def _moved(key: jax.Array, image: jax.Array, how: Augment) -> jax.Array:
    """Crop, flip, rotation, shear and scale of one image (height, width, channels), resampled once."""
    height, width, _ = image.shape
    flipped = _draw(key, FLIP, 0.0, 1.0) < 0.5 if how.flip else jnp.bool(False)
    if not (how.rotate or how.shear) and how.scale == how.crop == (1.0, 1.0):
        return jnp.where(flipped, image[:, ::-1], image) if how.flip else image

    # First map a pixel (x, y) of the result back to the crop, in coordinates from their centres: undo scale, shear,
    # rotation (counter-clockwise) and flip. The matrices are multiplied first, so that XLA does not compute the sines
    # for every pixel.
    angle = jnp.deg2rad(_draw(key, ROTATE, -how.rotate, how.rotate)) if how.rotate else jnp.float32(0)
    slant = jnp.tan(jnp.deg2rad(_draw(key, SHEAR, -how.shear, how.shear))) if how.shear else 0.0
    zoom = _draw(key, SCALE, *how.scale) if how.scale != (1.0, 1.0) else 1.0
    mirror, cos, sin = jnp.where(flipped, -1.0, 1.0), jnp.cos(angle), jnp.sin(angle)
    turn, lean = jnp.array([[mirror * cos, -mirror * sin], [sin, cos]]), jnp.array([[1.0, slant], [0.0, 1.0]]) / zoom
    (xx, xy), (yx, yy) = jnp.dot(turn, lean, precision=jax.lax.Precision.HIGHEST)
    y, x = jnp.meshgrid(*(jnp.arange(n) - (n - 1) / 2 for n in (height, width)), indexing="ij")
    x, y = xx * x + xy * y, yx * x + yy * y
    inside = (abs(y) <= height / 2) & (abs(x) <= width / 2)  # up to the outer edges of the outermost pixels, as in PIL

    # Then map from the crop, in coordinates from its centre, to the image. Nothing beyond the crop's box is visible:
    # there its edge repeats.
    tall, wide, top, left = jnp.float32(height), jnp.float32(width), jnp.float32(0), jnp.float32(0)
    if how.crop != (1.0, 1.0):
        area = _draw(key, AREA, *how.crop) * (height * width)
        ratio = jnp.exp(_draw(key, RATIO, *map(math.log, RATIOS)))
        tall = jnp.clip(jnp.round(jnp.sqrt(area / ratio)), 1, height)
        wide = jnp.clip(jnp.round(jnp.sqrt(area * ratio)), 1, width)
        top = jnp.floor(_draw(key, TOP, 0.0, height - tall + 1))
        left = jnp.floor(_draw(key, LEFT, 0.0, width - wide + 1))
    y = top + jnp.clip(y * (tall / height) + (tall - 1) / 2, 0, tall - 1)
    x = left + jnp.clip(x * (wide / width) + (wide - 1) / 2, 0, wide - 1)
    resample = jax.vmap(lambda channel: jax.scipy.ndimage.map_coordinates(channel, [y, x], 1, mode="nearest"), 2, 2)
    return jnp.where(inside[..., None], _clipped(resample(image)), 0.0)


def _recoloured(key: jax.Array, image: jax.Array, how: Augment) -> jax.Array:
    """One image (height, width, channels) with other brightness, contrast and saturation, cut to 0..255 after each."""
    if how.brightness:
        image = _clipped(image * _draw(key, BRIGHTNESS, 1 - how.brightness, 1 + how.brightness))
    if how.contrast:
        mean = _grey(image).mean()
        image = _clipped(mean + (image - mean) * _draw(key, CONTRAST, 1 - how.contrast, 1 + how.contrast))
    if how.saturation:
        grey = _grey(image)
        image = _clipped(grey + (image - grey) * _draw(key, SATURATION, 1 - how.saturation, 1 + how.saturation))
    return image


def _grey(image: jax.Array) -> jax.Array:
    """(height, width, 3 or 1) -> (height, width, 1)."""
    weights = jnp.array(GREY, jnp.float32)[:, None]
    return jnp.dot(image, weights, precision=jax.lax.Precision.HIGHEST) if image.shape[-1] == 3 else image


def _clipped(image: jax.Array) -> jax.Array:
    return jnp.clip(image, 0.0, 255.0)

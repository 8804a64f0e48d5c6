"""Augmentation: what is drawn, what it does to the pixels, and that a draw depends on (key, image) alone.

What was drawn is read off the results: a ramp image holds its own coordinates, so a resampled one says where each pixel
came from.
"""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from PIL import Image

from depthmup.data.augment import NONE, Augment, augment

KEY = jax.random.key(3)
GEOMETRY = Augment(True, 10.0, 15.0, (0.8, 1.2), (1.0, 1.0), 0.0, 0.0, 0.0)
COLOURS = dataclasses.replace(NONE, brightness=0.2, contrast=0.4, saturation=0.6)
ALL = Augment(True, 10.0, 10.0, (0.8, 1.2), (0.5, 1.0), 0.2, 0.2, 0.2)
jitted = jax.jit(augment, static_argnums=2)


def only(**fields):
    return dataclasses.replace(NONE, **fields)


def noise(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def ramps(batch, height, width):
    """Images whose two channels are the x and the y of each pixel."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    return np.broadcast_to(np.stack([x, y], axis=-1), (batch, height, width, 2))


def affine(how, batch=600, height=24, width=32, key=KEY):
    """Where the results' pixels come from, about the images' centres: matrices (batch, 2, 2) and shifts (batch, 2)."""
    out = np.asarray(jitted(key, ramps(batch, height, width), how), np.float64)
    row, column, reach = height // 2, width // 2, 4
    by_x = (out[:, row, column + reach] - out[:, row, column - reach]) / (2 * reach)
    by_y = (out[:, row + reach, column] - out[:, row - reach, column]) / (2 * reach)
    matrix = np.stack([by_x, by_y], axis=-1)
    at = np.array([column - (width - 1) / 2, row - (height - 1) / 2])
    return matrix, out[:, row, column] - matrix @ at


def motions(how, **kwargs):
    """The drawn flips, angles, shears (degrees) and zooms, each (batch,), of geometry without a crop."""
    matrix, shift = affine(how, **kwargs)
    np.testing.assert_allclose(shift, np.tile(shift[:1], (len(shift), 1)), atol=1e-3)  # the centre stays
    zoom = abs(np.linalg.det(matrix)) ** -0.5
    flip = matrix[:, 0, 0] < 0
    unflipped = matrix * np.where(flip, -1, 1)[:, None, None] ** np.array([[1, 1], [2, 2]])
    angle = np.arctan2(unflipped[:, 1, 0], unflipped[:, 0, 0])
    back = np.stack([np.stack([np.cos(angle), np.sin(angle)], -1), np.stack([-np.sin(angle), np.cos(angle)], -1)], 1)
    lean = back @ unflipped * zoom[:, None, None]
    np.testing.assert_allclose(lean[:, 1, 1], 1, atol=1e-4)
    return flip, np.degrees(angle), np.degrees(np.arctan(lean[:, 0, 1])), zoom


def boxes(how, batch, height, width):
    """The drawn crop boxes: left, top, wide, tall, each (batch,)."""
    matrix, middle = affine(how, batch, height, width)
    np.testing.assert_allclose(matrix[:, [0, 1], [1, 0]], 0, atol=1e-4)
    sides = matrix[:, [0, 1], [0, 1]] * (width, height)
    box = np.concatenate([middle - (sides - 1) / 2, sides], axis=1).T
    np.testing.assert_allclose(box, box.round(), atol=2e-2)  # whole pixels
    return box.round().astype(int)


def factors(how, batch=600):
    """The drawn brightness, contrast and saturation, each (batch,), from two colours that nothing clips.

    The grey image of both pixels is 100 and the mean is kept by the contrast, so only the brightness changes it.
    """
    grey = np.array([0.299, 0.587, 0.114])
    red, blue = np.array([20.0, 0, 0]), np.array([0, 0, 20.0])
    dark, light = 80 + red - grey @ red, 120 + blue - grey @ blue
    out = np.asarray(jitted(KEY, np.broadcast_to(np.float32([[dark, light]]), (batch, 1, 2, 3)), how), np.float64)[:, 0]
    brightness = (out @ grey).mean(axis=1) / 100
    contrast = np.diff(out @ grey, axis=1)[:, 0] / 40 / brightness
    saturation = (out[:, 0, 0] - out[:, 0, 1]) / 20 / brightness / contrast
    return brightness, contrast, saturation


def assert_uniform(values, low, high):
    assert low - 1e-3 <= values.min() <= values.max() <= high + 1e-3
    assert scipy.stats.kstest(values, "uniform", (low, high - low)).pvalue > 1e-3


def assert_independent(*draws):
    correlation = np.corrcoef(np.array(draws, float))
    assert abs(correlation - np.eye(len(draws))).max() < 0.16  # four standard deviations for 600


# What is drawn


def test_motions_are_uniform_and_independent():
    flip, angle, shear, zoom = motions(GEOMETRY)
    assert scipy.stats.binomtest(int(flip.sum()), len(flip)).pvalue > 1e-3
    assert_uniform(angle, -10, 10)
    assert_uniform(shear, -15, 15)
    assert_uniform(zoom, 0.8, 1.2)
    assert_independent(flip, angle, shear, zoom)
    assert_independent(flip[1:], flip[:-1])
    assert_independent(angle[1:], angle[:-1])


def test_crops_are_uniform_and_independent():
    height, width = 96, 80
    left, top, wide, tall = boxes(only(crop=(0.1, 0.5)), 600, height, width)  # too small to be cut
    area, ratio = wide * tall / (height * width), np.log(wide / tall)
    x, y = (left + 0.5) / (width - wide + 1), (top + 0.5) / (height - tall + 1)
    assert_uniform(area, 0.1 - 0.01, 0.5 + 0.01)  # whole pixels
    assert_uniform(ratio, math.log(3 / 4) - 0.03, math.log(4 / 3) + 0.03)
    assert_uniform(x, 0, 1)
    assert_uniform(y, 0, 1)
    assert_independent(area, ratio, x, y)


def test_crops_stay_inside():
    height, width = 24, 32
    left, top, wide, tall = boxes(only(crop=(0.7, 1.0)), 600, height, width)
    for start, side, room in ((left, wide, width), (top, tall, height)):
        free = side < room
        assert start.min() == start[free].min() == 0
        assert (start + side).max() == (start + side)[free].max() == room  # up to the last place, no further
    cut = tall == height
    assert 0.1 < cut.mean() < 0.9  # a wide image: many boxes would be too tall
    assert not (wide[cut] == width).all()


def test_factors_are_uniform_and_independent():
    brightness, contrast, saturation = factors(COLOURS)
    assert_uniform(brightness, 0.8, 1.2)
    assert_uniform(contrast, 0.6, 1.4)
    assert_uniform(saturation, 0.4, 1.6)
    _, angle, shear, zoom = motions(GEOMETRY)
    assert_independent(brightness, contrast, saturation, angle, shear, zoom)


def test_one_quantity_leaves_the_draws_of_the_others():
    together = motions(GEOMETRY)
    for field, index in (("rotate", 1), ("shear", 2), ("scale", 3)):
        alone = motions(only(**{field: getattr(GEOMETRY, field)}))
        np.testing.assert_allclose(alone[index], together[index], atol=1e-2 if index < 3 else 1e-3)
        for other in {1, 2, 3} - {index}:
            np.testing.assert_allclose(alone[other], 0 if other < 3 else 1, atol=1e-3)
    colours = factors(COLOURS)
    for field, index in (("brightness", 0), ("contrast", 1), ("saturation", 2)):
        alone = factors(only(**{field: getattr(COLOURS, field)}))
        np.testing.assert_allclose(alone[index], colours[index], atol=1e-4)
        for other in {0, 1, 2} - {index}:
            np.testing.assert_allclose(alone[other], 1, atol=1e-4)
    matrix, _ = affine(only(flip=True, crop=(0.5, 0.9)))
    np.testing.assert_array_equal(matrix[:, 0, 0] < 0, together[0])
    uncropped, _ = affine(only(crop=(0.5, 0.9)))
    np.testing.assert_allclose(abs(matrix), uncropped, atol=1e-4)


# What it does to the pixels


def test_none_changes_nothing():
    for images in (noise((4, 5, 6, 3)), noise((4, 5, 6, 3)).astype(np.float32) / 7, np.ones((4, 9), np.float32)):
        out = jitted(KEY, images, NONE)
        assert out.dtype == jnp.float32
        np.testing.assert_array_equal(out, images.astype(np.float32))


def test_flip_is_exact():
    images = noise((200, 5, 6, 3))
    out = np.asarray(jitted(KEY, images, only(flip=True)))
    flipped = (out == images[:, :, ::-1]).all(axis=(1, 2, 3))
    kept = (out == images).all(axis=(1, 2, 3))
    assert (flipped ^ kept).all()
    np.testing.assert_array_equal(flipped, motions(GEOMETRY, batch=200)[0])
    assert scipy.stats.binomtest(int(flipped.sum()), 200).pvalue > 1e-3


@pytest.mark.parametrize("how", [only(flip=True), COLOURS])
def test_nothing_is_resampled_without_need(how):
    def operations(how):
        return str(jax.make_jaxpr(augment, static_argnums=2)(KEY, noise((4, 8, 8, 3)), how))

    assert "gather" in operations(GEOMETRY)
    assert "gather" not in operations(how)


def as_pil(image):
    return [Image.fromarray(channel) for channel in np.moveaxis(image.astype(np.float32), -1, 0)]


@pytest.mark.parametrize("size", [(24, 32), (17, 17)])
def test_rotation_is_pils(size):
    images, how = noise((6, *size, 3)), only(rotate=60.0)
    out = np.asarray(jitted(KEY, images, how))
    angles = motions(how, batch=6)[1]
    assert abs(angles).max() > 30
    for image, result, angle in zip(images, out, angles, strict=True):
        expected = [channel.rotate(angle, Image.Resampling.BILINEAR) for channel in as_pil(image)]
        assert (np.array(expected) == 0).sum() > 20  # corners from outside
        np.testing.assert_allclose(
            np.moveaxis(result, -1, 0), expected, atol=0.1
        )  # angles are read off to 1e-3 degrees


def test_composed_motion_is_torchvisions():
    """Flip, F.rotate(angle), F.affine(angle=0, shear, scale): the matrices of its docstrings, by PIL."""
    height, width = 24, 32
    images = noise((8, height, width, 3))
    out = np.asarray(jitted(KEY, images, GEOMETRY))
    to_centre = np.array([[1, 0, -width / 2], [0, 1, -height / 2], [0, 0, 1]])  # PIL counts from the corner
    for image, result, *drawn in zip(images, out, *motions(GEOMETRY, batch=8), strict=True):
        flip, angle, shear, zoom = drawn[0], *np.radians(drawn[1:3]), drawn[3]
        rotation = np.array([[np.cos(angle), np.sin(angle), 0], [-np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
        affine = np.array([[zoom, -zoom * np.tan(shear), 0], [0, zoom, 0], [0, 0, 1]])
        back = np.linalg.inv(to_centre) @ np.linalg.inv(affine @ rotation) @ to_centre
        coefficients = tuple(back[:2].ravel())
        expected = [
            channel.transform((width, height), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)
            for channel in as_pil(image[:, ::-1] if flip else image)
        ]
        wrong = abs(np.moveaxis(result, -1, 0) - expected) > 0.2
        assert wrong.mean() < 2e-3  # a pixel on the very edge may fall either way


def test_crop_is_pils_resized_crop():
    images, how = noise((8, 24, 32, 3)), only(crop=(0.2, 0.9))
    out = np.asarray(jitted(KEY, images, how))
    for image, result, left, top, wide, tall in zip(images, out, *boxes(how, 8, 24, 32), strict=True):
        crop = as_pil(image[top : top + tall, left : left + wide])
        expected = [channel.resize((32, 24), Image.Resampling.BILINEAR) for channel in crop]
        np.testing.assert_allclose(np.moveaxis(result, -1, 0), expected, atol=0.01)


def test_a_turned_crop_does_not_see_beyond_its_box():
    """As where the crop comes first: what a turn brings in is 0, not the image around the box."""
    how = only(crop=(0.3, 0.3), rotate=45.0)
    angles = motions(only(rotate=45.0), batch=16)[1]
    out = np.asarray(jitted(KEY, np.full((16, 24, 32, 1), 200, np.uint8), how))
    alone = np.asarray(jitted(KEY, np.full((16, 24, 32, 1), 200, np.uint8), only(rotate=45.0)))
    assert abs(angles).max() > 20
    np.testing.assert_allclose(out, alone, atol=1e-3)


def test_colours():
    """Against the three equations, one after the other, on pixels that are clipped on the way."""
    images, how = noise((16, 8, 8, 3)).astype(np.float64), dataclasses.replace(COLOURS, brightness=0.6)
    brightness, contrast, saturation = (f[:16, None, None, None] for f in factors(COLOURS))
    brightness = 1 + 3 * (brightness - 1)  # the same draw on a wider interval
    expected = np.clip(brightness * images, 0, 255)
    assert (expected == 255).sum() > 100
    mean = (expected @ (0.299, 0.587, 0.114)).mean(axis=(1, 2))[:, None, None, None]
    expected = np.clip(contrast * expected + (1 - contrast) * mean, 0, 255)
    grey = (expected @ (0.299, 0.587, 0.114))[..., None]
    expected = np.clip(saturation * expected + (1 - saturation) * grey, 0, 255)
    np.testing.assert_allclose(jitted(KEY, images.astype(np.float32), how), expected, atol=0.05)


def test_contrast_keeps_the_mean_and_saturation_the_grey():
    images = (noise((8, 8, 8, 3)) / 4 + 90).astype(np.float32)  # nothing is clipped
    weights = np.array([0.299, 0.587, 0.114])
    contrasted = np.asarray(jitted(KEY, images, only(contrast=0.9)))
    np.testing.assert_allclose(
        (contrasted @ weights).mean(axis=(1, 2)), (images @ weights).mean(axis=(1, 2)), rtol=1e-5
    )
    saturated = np.asarray(jitted(KEY, images, only(saturation=0.9)))
    np.testing.assert_allclose(saturated @ weights, images @ weights, rtol=1e-5)
    for out in (contrasted, saturated):
        assert abs(out - images).max(axis=(1, 2, 3)).min() > 0.1


def test_one_channel():
    images = noise((8, 12, 12, 3))[..., :1]
    np.testing.assert_array_equal(jitted(KEY, images, only(saturation=1.0)), images)
    out = np.asarray(jitted(KEY, images, ALL))
    coloured = np.asarray(jitted(KEY, np.repeat(images, 3, axis=-1), ALL))  # the same draws
    np.testing.assert_allclose(coloured, np.repeat(out, 3, axis=-1), atol=0.01)


def test_shape_dtype_and_range(x64):
    images = noise((4, 9, 7, 3))
    out = jitted(KEY, images, dataclasses.replace(ALL, brightness=1.0, contrast=1.0, saturation=1.0))
    assert out.shape == images.shape
    assert out.dtype == jnp.float32
    assert 0 <= out.min() < out.max() <= 255


# Where it runs


def test_image_i_depends_on_key_and_i_alone():
    images = noise((8, 12, 12, 3))
    whole = jitted(KEY, images, ALL)
    np.testing.assert_allclose(whole[:4], jitted(KEY, images[:4], ALL), atol=1e-3)
    part = augment(KEY, jnp.asarray(images[4:6]), ALL, places=jnp.arange(4, 6))
    np.testing.assert_allclose(whole[4:6], part, atol=1e-2)
    np.testing.assert_allclose(whole, jitted(KEY, images.astype(np.float32), ALL), atol=1e-3)  # bytes or floats
    others = np.concatenate([images[:4], noise((4, 12, 12, 3), seed=1)])
    np.testing.assert_allclose(whole[:4], jitted(KEY, others, ALL)[:4], atol=1e-3)
    same = np.asarray(jitted(KEY, np.broadcast_to(images[:1], images.shape), ALL))
    assert len(np.unique(same.reshape(8, -1), axis=0)) == 8  # each image its own draws
    assert abs(whole - jitted(jax.random.key(4), images, ALL)).max() > 10


def test_inside_vmap_scan_and_pmap():
    images, keys, how = noise((4, 12, 12, 3)), jax.random.split(KEY, 2), only(flip=True, rotate=10.0, contrast=0.5)
    one = np.asarray([jitted(key, images, how) for key in keys])

    @jax.jit
    def mapped(images, keys):
        over_trials = jax.vmap(lambda rate: rate * augment(keys[0], images, how))(jnp.ones(3))
        over_images = jax.vmap(lambda each: augment(keys[0], each, how))(jnp.stack([images] * 3))
        over_keys = jax.vmap(lambda key: augment(key, images, how))(keys)
        scanned = jax.lax.scan(lambda _, key: (None, augment(key, images, how)), None, keys)[1]
        return over_trials, over_images, over_keys, scanned

    over_trials, over_images, over_keys, scanned = mapped(images, keys)
    over_devices = jax.pmap(lambda key: augment(key, images, how), devices=jax.devices()[:2])(keys)
    for trial in (*over_trials, *over_images):  # the key is not mapped: the same draws for every trial
        np.testing.assert_allclose(trial, one[0], atol=1e-2)
    for result in (over_keys, scanned, over_devices):
        np.testing.assert_allclose(result, one, atol=1e-2)


# What is refused


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        *(("rotate", value, "in [0, 180]") for value in (-3, 181, math.nan)),
        *(("shear", value, "in [0, 45]") for value in (-1.0, 46)),
        *((colour, value, "in [0, 1]") for colour in ("brightness", "contrast", "saturation") for value in (-0.1, 1.5)),
        *(("scale", pair, "a pair (low, high) with 0 < low <= high") for pair in ((0.0, 1.0), (1.2, 0.8), 1.0, (1.0,))),
        *(("crop", pair, "a pair (low, high) with 0 < low <= high <= 1") for pair in ((0, 1), (0.9, 0.5), (0.5, 1.1))),
        ("crop", [0.5, 1.0], "a pair (low, high) with 0 < low <= high <= 1"),
    ],
)
def test_bad_fields_are_named(field, value, rule):
    with pytest.raises(ValueError, match=f"^{re.escape(f'augment.{field} must be {rule}, got {value}')}$"):
        only(**{field: value})


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match=r"needs images \(batch, height, width, channels\), got shape \(4, 64\)"):
        augment(KEY, jnp.zeros((4, 64)), only(flip=True))
    with pytest.raises(ValueError, match="need 1 or 3 channels, got 4"):
        augment(KEY, jnp.zeros((4, 8, 8, 4)), only(contrast=0.1))

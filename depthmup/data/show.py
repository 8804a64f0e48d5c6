"""Draw the network's inputs: a grid of training images, augmented as in the first step, with their labels.

    python -m depthmup.data.show --config=configs/patches.py:resnet --out=grid.png [--config.data.key=value ...]

Under each row of augmented images the same images are drawn without augmentation, as in evaluation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from ml_collections import config_flags

from depthmup import find_config
from depthmup.data import Augment, Batches, load

COLUMNS, ROWS = 8, 4


def grid(batches: Batches, path: str | Path) -> None:
    """Draw up to COLUMNS x ROWS images of the first step's batch into a picture file. Raises ValueError for tokens."""
    import matplotlib.pyplot as plt

    dataset = batches.dataset
    if dataset.mean is None or dataset.std is None:
        raise ValueError("data.name: the examples are tokens, and show draws images")
    inputs, labels = next(batches.train(0, 1))
    rows = min(ROWS, -(-len(labels) // COLUMNS))
    figure, axes = plt.subplots(2 * rows, COLUMNS, figsize=(1.2 * COLUMNS, 2.5 * rows), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for j, step in enumerate((0, None)):
        prepared = np.asarray(batches.prepare(jnp.asarray(inputs), step)) * dataset.std + dataset.mean
        pixels = np.clip(prepared / inputs.max(), 0, 1)
        for i, label in enumerate(labels[: rows * COLUMNS]):
            axis = axes[2 * (i // COLUMNS) + j, i % COLUMNS]
            axis.imshow(pixels[i], cmap="gray", vmin=0, vmax=1)
            if step is not None:
                axis.set_title(dataset.names[label], fontsize=8)
    figure.suptitle("augmented images of the first step; below each, the image without augmentation", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(argv: Sequence[str]) -> None:
    data, out = flags.FLAGS.config.data, Path(flags.FLAGS.out)
    try:
        dataset = load(data.name, data.data_dir, data.image_size, data.skip_corrupt, data.context, data.verify)
        batches = Batches(dataset, data.batch_size, data.seed, Augment(**data.augment), 0, data.skip_corrupt)
        grid(batches, out)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    sizes = ", ".join(f"{getattr(dataset, name).examples} {name}" for name in ("train", "validation", "test"))
    print(f"{data.name}: {sizes} examples of shape {dataset.shape}, {dataset.classes} classes; picture: {out}")


if __name__ == "__main__":
    try:
        arguments = find_config.paths(sys.argv)
    except ValueError as error:
        sys.exit(f"error: {error}")
    config_flags.DEFINE_config_file(
        "config",
        find_config.find("digits"),
        "Config file, or the name of a shipped one; --config.data.key=value overrides.",
        sys_argv=arguments,
    )
    flags.DEFINE_string("out", "grid.png", "Where the picture goes.")
    logging.set_verbosity(logging.WARNING)
    app.run(main, argv=arguments)

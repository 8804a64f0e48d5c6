"""Download and prepare a data set of TFDS for random access.

    python -m depthmup.data.prepare cifar10 [--data_dir=DIR]

Do this once, before training. Some data sets need TensorFlow for it (pip install tensorflow-cpu); training never does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from depthmup.data.tfds_images import TFDS, builder_of, manual_folder


def prepare_tfds(name: str, data_dir: str | None = None) -> Path:
    """Write the data set as array_record and return its folder. Raises ValueError if that folder has another format."""
    try:
        builder = builder_of(name, data_dir, file_format="array_record")
    except ValueError as error:
        folder = builder_of(name, data_dir).data_dir
        empty = f"{Path(folder).parents[1]}_array_record"
        raise ValueError(f"{folder} is prepared in another format: give another folder, --data_dir={empty}") from error
    builder.download_and_prepare(download_dir=str(manual_folder(builder.data_dir_root).parent))
    return Path(builder.data_dir)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(TFDS))
    parser.add_argument("--data_dir", help="where data sets are; default ~/tensorflow_datasets")
    arguments = parser.parse_args()
    try:
        print("prepared:", prepare_tfds(arguments.name, arguments.data_dir))
    except ModuleNotFoundError as error:
        sys.exit(f"error: preparing {arguments.name} needs {error.name}: pip install tensorflow-cpu")
    except (ValueError, AssertionError, FileNotFoundError) as error:
        message = " ".join(str(error).split())
        if arguments.name in TFDS and TFDS[arguments.name].manual:
            folder = manual_folder(arguments.data_dir or "~/tensorflow_datasets")
            message += f" ({TFDS[arguments.name].manual} must be in {folder})"
        sys.exit(f"error: {message}")


if __name__ == "__main__":
    main()

"""The Python sources of the pinned packages as tokens: a corpus of 140 million bytes that is on every machine.

    python -m depthmup.data.python_sources

makes it once in a cache folder, as the first use does. It is the same on every machine with the pins of
requirements.txt: python_sources_3.11.toml and python_sources_3.12.toml, one for each of the two sets of pins, have
hash, licence and size of each package, and the hash of all tokens. The sources themselves stay where they are. After
new pins, under a Python of each set:

    python -m depthmup.data.python_sources --list > depthmup/data/python_sources_3.11.toml

Left out are the __config__.py of NumPy and SciPy, which tell of the machine that built them, and what looks generated
or like data: lines of over 1,000 characters or over 100 on average (Chen et al. 2021, arXiv 2107.03374, section 3.1).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from depthmup.data.prepare_tokens import tokens_digest, write_tokens
from depthmup.data.tokens import SIDECAR
from depthmup.files import digest
from depthmup.names import install

# Of the extra "run" those with a megabyte of sources, but for plotly and jaxlib, which are generated.
PACKAGES = (
    "fonttools", "flax", "grain", "imageio", "jax", "matplotlib", "narwhals", "networkx", "numpy", "optax",
    "orbax-checkpoint", "pandas", "pillow", "pyarrow", "pygments", "rich", "scikit-image", "scikit-learn", "scipy",
    "tensorflow-datasets", "tifffile",
)  # fmt: skip
VOCABULARY = 8192
LONGEST, AVERAGE = 1000, 100  # characters of a line


class PackageSources(NamedTuple):
    """The sources of one package that is installed. digest: hash of their names and contents."""

    version: str
    licence: str
    files: list[Path]
    bytes: int
    digest: str


def tokens_folder() -> Path:
    """The folder of the tokens, made if it is not there. Raises ValueError for a package that is not the pinned one."""
    pinned = tomllib.loads(_pins().read_text())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    result = cache / "depthmup" / f"python-sources-{digest(pinned)}"
    if not (result / SIDECAR).exists():
        files = checked_files(pinned["packages"])
        print(f"making the tokens of the Python sources, once, in a minute: {result}", file=sys.stderr)
        try:
            write_tokens(files, result, train_vocabulary=VOCABULARY, expected=pinned["tokens_digest"])
        except ModuleNotFoundError as error:
            raise ValueError(
                f"data.name=tokens without data.data_dir needs {error.name}: {install('tokens')}"
            ) from error
        except OSError as error:
            raise ValueError(f"the tokens of the Python sources: {error} (XDG_CACHE_HOME is their place)") from error
        except ValueError as error:
            raise ValueError(f"the tokens of the Python sources: {error} ({pinned['tokenizer']})") from error
    return result


def checked_files(packages: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    """The files of the packages. Raises ValueError, with the first package that is another one than the pinned."""
    files, others = [], []
    for name, pinned in packages.items():
        try:
            here = sources(name)
        except importlib.metadata.PackageNotFoundError:
            others.append(f"{name} is not installed")
            continue
        if here.version != pinned["version"]:
            others.append(f"{name} is {here.version}, not {pinned['version']}")
        elif here.digest != pinned["digest"]:
            others.append(f"{name} {here.version} has other files than the published ones")
        files += here.files
    if others:
        more = f" (and {len(others) - 1} packages more)" if others[1:] else ""
        raise ValueError(
            f"data.name=tokens without data.data_dir needs the pinned packages: {others[0]}{more}: "
            "pip install -r requirements.txt, or set data.data_dir"
        )
    return files


def sources(name: str) -> PackageSources:
    """The sources of an installed package. Raises PackageNotFoundError if there is none."""
    package = importlib.metadata.distribution(name)
    files, size, hashes = [], 0, []
    for file in sorted(package.files or [], key=str):
        if file.suffix != ".py" or file.parts[0] == ".." or file.name == "__config__.py":
            continue
        path = Path(str(file.locate()))
        content = path.read_bytes() if path.exists() else b""
        lines = content.split(b"\n")
        if not content.strip() or max(map(len, lines)) > LONGEST or len(content) > AVERAGE * len(lines):
            continue
        try:
            content.decode()
        except UnicodeDecodeError:
            continue
        files.append(path)
        size += len(content)
        hashes.append((str(file), hashlib.sha256(content).hexdigest()))
    about = package.metadata
    classifiers = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    expression, text = (about.get_all(field, [""])[0] for field in ("License-Expression", "License"))
    licence = expression or ", ".join(classifiers) or " ".join(text.split()[:4]) or "unknown"
    return PackageSources(package.version, licence, files, size, digest(hashes))


def _pins() -> Path:
    """The list of the pins of this Python."""
    return Path(__file__).with_name(f"python_sources_{'3.11' if sys.version_info < (3, 12) else '3.12'}.toml")


def main() -> None:
    """Make the folder; or, with --list, print the list of the packages that are installed."""
    if sys.argv[1:] != ["--list"]:
        try:
            print("prepared:", tokens_folder())
        except ValueError as error:
            sys.exit(f"error: {error}")
        return
    packages = {name: sources(name) for name in sorted(PACKAGES)}
    files = [file for package in packages.values() for file in package.files]
    with tempfile.TemporaryDirectory() as temporary:
        about = write_tokens(files, Path(temporary) / "tokens", train_vocabulary=VOCABULARY)
    counts = {name: file["tokens"] for name, file in about["files"].items()}
    print(
        "# Written by `python -m depthmup.data.python_sources --list`: what the corpus of data.name=tokens is made of."
    )
    print(f"# {about['text_files']} files, {about['text_bytes']} bytes; tokens: {json.dumps(counts)}")
    print(f'tokenizer = "{about["tokenizer"]}"\ntokens_digest = "{tokens_digest(about)}"')
    for name, package in packages.items():
        print(f'\n[packages.{name}]\nversion = "{package.version}"\nlicence = {json.dumps(package.licence)}')
        print(f'files = {len(package.files)}\nbytes = {package.bytes}\ndigest = "{package.digest}"')


if __name__ == "__main__":
    main()

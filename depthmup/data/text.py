"""Text as a data set: its bytes are the tokens, and windows of it the examples."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from types import ModuleType

import numpy as np

from depthmup.data.dataset import Dataset, Split

CONTEXT = 64  # bytes that a model sees, where data.context is unset
TENTHS = {"train": (0, 8), "validation": (8, 9), "test": (9, 10)}  # the parts of the text, from tenth to tenth
HELD_OUT = 2**16  # bytes of windows in validation and in test, at most: an evaluation of more tells little more
NAMES = tuple(bytes([byte]).decode("latin-1") for byte in range(256))


def load_text(data_dir: str | None = None, context: int | None = None) -> Dataset:
    """Windows of a text. Inputs are bytes, (examples, context) uint8; labels the next bytes, (examples, context) int32.

    The text is cut into windows of context + 1 bytes without overlap. Its first eight tenths are for training, the
    ninth for validation, the last for test. Within each the windows are shuffled, the same way each time; of the last
    two at most HELD_OUT bytes are kept.

    Args:
      data_dir: a file of text, or a folder of files, which are joined by newlines in the order of their paths; hidden
        ones are passed over. None: `docstrings`.
      context: None: CONTEXT.

    Raises ValueError if there is no such text, if a file has a zero byte, or if the text has fewer than ten windows.
    """
    content = docstrings() if data_dir is None else np.frombuffer(_read(Path(data_dir).expanduser()), np.uint8)
    size = (context or CONTEXT) + 1
    count = len(content) // size
    if count < 10:
        raise ValueError(
            f"the text of data.data_dir has {len(content)} bytes, and needs {10 * size} or more, ten windows of "
            f"data.context + 1 = {size}: give more text, or lower data.context"
        )
    windows = content[: count * size].reshape(count, size)

    def split(name: str) -> Split:
        low, high = (count * tenth // 10 for tenth in TENTHS[name])
        places = low + np.random.default_rng(0).permutation(high - low)
        chosen = windows[places if name == "train" else places[: max(1, HELD_OUT // size)]]
        return Split(chosen[:, :-1], chosen[:, 1:].astype(np.int32))

    train, validation, test = map(split, TENTHS)
    source = f"NumPy {np.__version__}" if data_dir is None else f"{len(content)} bytes"
    digest = f"{source}, {hashlib.sha256(content.tobytes()).hexdigest()[:12]}"
    return Dataset(train, validation, test, mean=None, std=None, shape=(size - 1,), names=NAMES, digest=digest)


@functools.cache
def docstrings() -> np.ndarray:
    """The docstrings of NumPy's public functions and classes, each once, sorted by name; (bytes,), uint8: 1.5 million
    bytes of text that are on every machine where depthmup runs."""
    texts: dict[str, None] = {}
    modules: tuple[ModuleType, ...] = (np, np.linalg, np.fft, np.random, np.ma, np.polynomial.polynomial)
    for module in modules:
        for name in sorted(dir(module)):
            text = getattr(getattr(module, name), "__doc__", None) if not name.startswith("_") else None
            if isinstance(text, str) and len(text) > 200:
                texts[text] = None
    return np.frombuffer("\n".join(texts).encode(), np.uint8)


def _read(path: Path) -> bytes:
    """The bytes of a file, or of the files in a folder and in those below."""
    if path.is_dir():
        below = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
        files = [path / file for file in sorted(below) if not any(part.startswith(".") for part in file.parts)]
    else:
        files = [path] if path.is_file() else []
    if not files:
        what = "has no file" if path.is_dir() else "does not exist"
        raise ValueError(f"data.data_dir: {path} {what}: give a file of text or a folder of files")
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, contents, strict=True):
        if b"\0" in content:
            raise ValueError(f"{file} is no text, it has a zero byte: move it out of data.data_dir")
    return b"\n".join(contents)

"""Make a folder of tokens from text, for data.name=tokens.

    python -m depthmup.data.prepare_tokens FILES --out=DIR                            (bytes)
    python -m depthmup.data.prepare_tokens FILES --out=DIR --train_vocabulary=8192    (a BPE of this text)
    python -m depthmup.data.prepare_tokens FILES --out=DIR --tokenizer=tokenizer.json

FILES are text files and folders of them; hidden files are passed over. Files are put into a random order by their
contents, equal ones once; an end of text follows each. The last tokens are held out, half for validation and half for
test. DIR appears when it is whole. Tokenizers but bytes need a library: pip install -e '.[tokens]'.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from depthmup.data.tokens import MOST, SIDECAR, file_digest
from depthmup.files import digest
from depthmup.names import install

PIECE = 2**16  # characters that are tokenized at once, up to the end of their line
AT_ONCE = 256  # pieces that the library tokenizes in parallel
HELD_OUT = 0.02  # share of the tokens, half for validation and half for test
TRAINED_ON = 2**24  # characters on which a BPE is trained, the first ones of the random order
END = "<|endoftext|>"  # of GPT-2, and of what is trained here


class Tokenizer(NamedTuple):
    """encode: texts -> the tokens of each. end: the token behind each file; None: none. saved: its tokenizer.json."""

    name: str
    vocabulary: int
    encode: Callable[[list[str]], Iterable[Sequence[int]]]
    end: int | None
    saved: str = ""


def write_tokens(
    files: Sequence[Path],
    out: Path,
    tokenizer: str = "bytes",
    end_of_text: str = END,
    train_vocabulary: int | None = None,
    held_out: float = HELD_OUT,
    expected: str | None = None,
) -> dict[str, Any]:
    """Write train.bin, val.bin, test.bin and tokens.json of text files into the new folder `out`; returns the last.

    Args:
      files: are put into a random order by their contents, equal ones once.
      tokenizer: bytes, or the path of a tokenizer.json of the library `tokenizers`.
      end_of_text: the token of tokenizer.json that follows each file; "": none. Behind bytes it is 0.
      train_vocabulary: train a byte-level BPE of this size on the text instead.
      held_out: share of the tokens that are not for training.
      expected: `tokens_digest` of the tokens; None: any.

    Raises ValueError if `out` has files, for a file that is no UTF-8 or has a zero byte, for too little text, for a
    tokenizer that cannot be used, and for other tokens than expected; ModuleNotFoundError without the library.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already: remove it, or give another --out")
    if not 0 < held_out < 1:
        raise ValueError(f"--held_out must be above 0 and below 1, got {held_out:g}")
    ordered = _ordered(files)
    chosen = _trained(ordered, train_vocabulary) if train_vocabulary else _tokenizer(tokenizer, end_of_text)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}")
    temporary.mkdir()
    try:
        about = _write(ordered, chosen, temporary, held_out)
        if expected and tokens_digest(about) != expected:
            raise ValueError("the tokens are not the expected ones")
        if chosen.saved:
            (temporary / "tokenizer.json").write_text(chosen.saved)
        (temporary / SIDECAR).write_text(json.dumps(about, indent=1) + "\n")
        with contextlib.suppress(OSError):  # where another process was faster, its folder has the same tokens
            os.rename(temporary, out)
        if not (out / SIDECAR).exists():
            raise ValueError(f"{out} cannot be written: remove what is there, or give another --out")
        return about
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def tokens_digest(about: dict[str, Any]) -> str:
    """Hash of all tokens that a sidecar describes, and of the size of the vocabulary."""
    return digest([about["vocabulary"], about["files"]])


def text_files(paths: Iterable[Path]) -> list[Path]:
    """The files among the paths, and those in the folders and below, without hidden ones."""
    result = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist: give text files, or folders of them")
        below = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        hidden = (any(part.startswith(".") for part in file.relative_to(path).parts) for file in below)
        result += [file for file, leave in zip(below, hidden, strict=True) if not leave]
    return result


def _write(files: Sequence[Path], tokenizer: Tokenizer, folder: Path, held_out: float) -> dict[str, Any]:
    """Write the tokens of the files; returns what the sidecar says."""
    dtype, largest, total = "uint16" if tokenizer.vocabulary <= 2**16 else "uint32", 0, 0
    train = folder / "train.bin"
    end = [] if tokenizer.end is None else [tokenizer.end]
    pieces = _pieces(_shown(files))
    with train.open("wb") as file:
        while batch := list(itertools.islice(pieces, AT_ONCE)):
            for ids, (_, last) in zip(tokenizer.encode([text for text, _ in batch]), batch, strict=True):
                tokens = np.array([*ids, *end] if last else ids, dtype)
                largest, total = max(largest, int(tokens.max(initial=0))), total + len(tokens)
                file.write(tokens.tobytes())
    half = round(total * held_out / 2)
    if not half:
        raise ValueError(f"the text has {total} tokens, too few to hold out {held_out:g} of them: give more text")
    for name, stop in (("test.bin", total), ("val.bin", total - half)):
        np.fromfile(train, dtype, half, offset=(stop - half) * np.dtype(dtype).itemsize).tofile(folder / name)
    os.truncate(train, (total - 2 * half) * np.dtype(dtype).itemsize)
    counts = {"train.bin": total - 2 * half, "val.bin": half, "test.bin": half}
    return {
        "tokenizer": tokenizer.name,
        "vocabulary": tokenizer.vocabulary,
        "dtype": dtype,
        "largest": largest,
        "end_of_text": tokenizer.end,
        "text_files": len(files),
        "text_bytes": sum(path.stat().st_size for path in files),
        "files": {name: {"tokens": n, "digest": file_digest(folder / name)} for name, n in counts.items()},
    }


def _ordered(files: Sequence[Path]) -> list[Path]:
    """The files in the order of the hashes of their contents, each content once."""
    by_content: dict[str, Path] = {}
    for path in files:
        with path.open("rb") as file:
            by_content.setdefault(hashlib.file_digest(file, "sha256").hexdigest(), path)
    return [by_content[content] for content in sorted(by_content)]


def _pieces(files: Iterable[Path]) -> Iterator[tuple[str, bool]]:
    """(text, whether it is the last of its file) of pieces of the files."""
    for path in files:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                piece = file.read(PIECE) + file.readline()
                while piece:
                    following = file.read(PIECE) + file.readline()
                    if "\0" in piece:
                        raise ValueError("it has a zero byte")
                    yield piece, not following
                    piece = following
        except ValueError as error:
            raise ValueError(f"{path} is no text in UTF-8 ({error}): leave it out") from error


def _shown(files: Sequence[Path]) -> Iterator[Path]:
    """The files, with a progress bar of their bytes on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("tokens"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=sum(path.stat().st_size for path in files))
        for path in files:
            yield path
            progress.advance(task, path.stat().st_size)


def _encode_bytes(texts: list[str]) -> list[Any]:
    return [np.frombuffer(text.encode(), np.uint8) for text in texts]


def _tokenizer(name: str, end_of_text: str) -> Tokenizer:
    if name == "bytes":
        return Tokenizer("bytes", 256, _encode_bytes, 0)
    import tokenizers

    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"--tokenizer={name}: there is no such file: give bytes, or a tokenizer.json")
    try:
        loaded = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        words = " ".join(str(error).split())
        raise ValueError(f"--tokenizer={name} is no tokenizer.json of the library tokenizers: {words}") from error
    if end_of_text and loaded.token_to_id(end_of_text) is None:
        raise ValueError(
            f"{name} has no token {end_of_text!r}: name its own by --end_of_text, or none by --end_of_text="
        )
    return _of_library(path.name, loaded, end_of_text)


def _trained(files: Sequence[Path], size: int) -> Tokenizer:
    """A byte-level BPE of GPT-2's kind, with `size` tokens. The same files give the same one."""
    from tokenizers import Tokenizer as Library
    from tokenizers import __version__, decoders, models, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if not len(alphabet) < size <= MOST:
        raise ValueError(f"--train_vocabulary must be {len(alphabet) + 1} to {MOST}, got {size}")
    bpe = Library(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=[END], show_progress=False)
    pieces = (text for text, _ in _pieces(files))
    bpe.train_from_iterator(itertools.islice(pieces, TRAINED_ON // PIECE), trainer)
    if bpe.get_vocab_size() < size:
        raise ValueError(f"the text has pairs for {bpe.get_vocab_size()} tokens alone: lower --train_vocabulary={size}")
    return _of_library(f"BPE of {size} tokens, trained on this text by tokenizers {__version__}", bpe, END)


def _of_library(name: str, tokenizer: Any, end_of_text: str) -> Tokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a text that says <|endoftext|> has not ended there
    size = max(tokenizer.get_vocab().values()) + 1

    def encode(texts: list[str]) -> Iterator[list[int]]:
        return (encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False))

    return Tokenizer(
        name, size, encode, tokenizer.token_to_id(end_of_text) if end_of_text else None, tokenizer.to_str()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="text files, or folders of them")
    parser.add_argument("--out", type=Path, help="the folder to make")
    parser.add_argument("--tokenizer", default="bytes", help="bytes, or a tokenizer.json; default bytes")
    parser.add_argument("--end_of_text", default=END, help=f"token behind each file; default {END}")
    parser.add_argument("--train_vocabulary", type=int, help="train a BPE of this size on the text")
    parser.add_argument("--held_out", type=float, default=HELD_OUT, help=f"share of the tokens; default {HELD_OUT}")
    arguments = parser.parse_args()
    try:
        if not arguments.files or not arguments.out:
            raise ValueError("give FILES and --out=DIR")
        options = {k: v for k, v in vars(arguments).items() if k not in ("files", "out")}
        about = write_tokens(text_files(arguments.files), arguments.out, **options)
        counts = ", ".join(f"{name} {file['tokens']}" for name, file in about["files"].items())
        print(f"prepared: {arguments.out}, {counts} tokens of {about['vocabulary']}")
    except ModuleNotFoundError as error:
        sys.exit(f"error: this needs {error.name}: {install('tokens')}")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()

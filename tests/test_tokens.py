"""Tokens on disk: files as nanoGPT writes them, their windows, their way through training, and what is refused."""

import itertools
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from depthmup.data import Batches, load, tokens
from depthmup.data.batches import shuffled
from depthmup.data.prepare_tokens import text_files, write_tokens
from depthmup.data.python_sources import PACKAGES, PackageSources, checked_files, sources, tokens_folder
from tests.test_main import assert_one_line, call  # noqa: F401 - call is a fixture

ROOT = Path(__file__).parent.parent
CONTEXT, BATCH = 7, 4
pytestmark = pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")
SMALL = (
    "--config.model.width=16",
    "--config.data.name=tokens",
    "--config.data.context=8",
    "--config.data.batch_size=4",
)


def nano(path, values, dtype=np.uint16):
    """As data/shakespeare_char/prepare.py and data/openwebtext/prepare.py of nanoGPT write their files."""
    path.parent.mkdir(exist_ok=True)
    array = np.memmap(path, dtype=dtype, mode="w+", shape=(len(values),))
    array[:] = values
    array.flush()


@pytest.fixture
def data(tmp_path):
    """Two training files, one of validation; each token says where it is."""
    nano(tmp_path / "d" / "train_000.bin", range(300))
    nano(tmp_path / "d" / "train_001.bin", range(1000, 1215))
    nano(tmp_path / "d" / "val.bin", range(2000, 2090))
    return tmp_path / "d"


def whole(batch):
    """The windows of a batch; a label is the next token."""
    inputs, labels = batch
    assert inputs.dtype == labels.dtype == np.int32
    np.testing.assert_array_equal(inputs[:, 1:], labels[:, :-1])
    return np.concatenate([inputs, labels[:, -1:]], axis=1)


def same(some, others):
    for one, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


def test_every_window_once_per_epoch(data):
    """Windows of the files and of nothing else, each in one place of an epoch, in another order in the next."""
    dataset = load("tokens", str(data), context=CONTEXT)
    assert (dataset.shape, dataset.classes, dataset.tokens, dataset.in_memory) == ((CONTEXT,), 2112, True, False)
    expected = [list(range(low, low + CONTEXT + 1)) for low in (*range(0, 292, 7), *range(1000, 1208, 7))]
    assert dataset.train.examples == len(expected) == 42 + 30
    batches = Batches(dataset, BATCH, seed=3)
    rows = np.concatenate([whole(batch) for batch in batches.train(0, 36)])
    for epoch in (rows[:72], rows[72:]):
        assert sorted(epoch.tolist()) == expected
    assert not np.array_equal(rows[:72], rows[72:])
    assert not np.array_equal(rows[:72], np.array(expected))
    other = np.concatenate([whole(batch) for batch in Batches(dataset, BATCH, seed=4).train(0, 36)])
    assert not any(np.array_equal(epoch, rows[72:]) for epoch in (other[:72], other[72:]))


def test_resumed_and_shared(data):
    """Batches from step k on are those of an uninterrupted run; processes have disjoint parts, which are the batch."""
    batches = Batches(load("tokens", str(data), context=CONTEXT), BATCH, seed=3)
    uninterrupted = list(batches.train(0, 40))
    for k in (1, 17, 18, 25):
        same(batches.train(k, 40), uninterrupted[k:])
    parts = [list(batches.train(5, 25, shard=(i, 2))) for i in range(2)]
    for step, batch in enumerate(uninterrupted[5:25]):
        np.testing.assert_array_equal(np.concatenate([whole(part[step]) for part in parts]), whole(batch))
    source = batches.train(0, 2**40)  # the loop takes what it needs, and closes it
    next(source)
    source.close()


def test_evaluation(data):
    """Each half of val.bin once, the rest of the last batch without labels; or all of it, where there is a test.bin."""
    dataset = load("tokens", str(data), context=CONTEXT)
    batches, seen = Batches(dataset, BATCH), []
    for split in (dataset.validation, dataset.test):
        ((inputs, labels),) = batches.evaluated(split)
        assert len(inputs) == 256
        real = labels[:, 0] >= 0
        assert real.sum() == split.examples == 6
        seen.append(sorted(inputs[real, 0]))
        shares = [b for i in range(2) for b in batches.evaluated(split, shard=(i, 2))]
        same([[np.concatenate(leaves) for leaves in zip(*shares, strict=True)]], [(inputs, labels)])
    assert seen == [list(range(2000, 2042, 7)), list(range(2042, 2084, 7))]
    nano(data / "test.bin", range(500))
    load.cache_clear()
    dataset = load("tokens", str(data), context=CONTEXT)
    assert (dataset.validation.examples, dataset.test.examples) == (12, 71)


def test_an_evaluation_is_of_so_many_tokens(data, monkeypatch):
    """Fewer examples of more tokens; the first of a fixed random order, so of the whole file."""
    monkeypatch.setattr(tokens, "HELD_OUT", 35)
    monkeypatch.setattr("depthmup.data.pipeline.EVALUATION_TOKENS", 20)
    dataset = tokens.load_tokens(str(data), CONTEXT)
    assert dataset.validation.examples == 5
    sizes = [len(inputs) for inputs, _ in Batches(dataset, BATCH).evaluated(dataset.validation)]
    assert sizes == [3, 3]
    monkeypatch.setattr("depthmup.data.pipeline.TRAIN_EVALUATED", 70)
    batches = Batches(dataset, BATCH)
    firsts = np.concatenate([inputs[:, 0] for inputs, _ in batches.evaluated(dataset.train)])[:10]
    assert batches.train_evaluated == len(set(firsts)) == 10
    assert np.ptp(firsts) > 300


def test_a_permutation_without_an_array():
    assert sorted(shuffled(1000, 5, 2, np.arange(1000))) == list(range(1000))
    places = np.random.default_rng(0).integers(0, 4 * 10**9, 1000)
    assert len(set(shuffled(4 * 10**9, 0, 0, places))) == len(set(places))
    # no seed has the order of another one in a later epoch
    orders = {tuple(shuffled(100, seed, epoch, np.arange(9))) for seed in range(9) for epoch in range(9)}
    assert len(orders) == 81
    with pytest.raises(ValueError, match="4294967296 examples are too many to shuffle"):
        shuffled(2**32, 0, 0, places)


def test_memory_does_not_grow_with_the_file(tmp_path):
    """Eight gigabytes of zeros, which take no room on the disk: read in batches, a few megabytes more than before."""
    for name, size in (("train.bin", 2**33), ("val.bin", 2**20)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    with pytest.raises(
        ValueError, match=r"too many tokens to look for the largest: set data.vocabulary to their number"
    ):
        tokens.load_tokens(str(tmp_path), 1024)
    (tmp_path / "tokens.json").write_text('{"dtype": "uint32", "vocabulary": 300}')
    dataset = load("tokens", str(tmp_path), context=1024)
    assert (dataset.classes, dataset.train.examples) == (300, 2**21 - 1)
    batches = Batches(dataset, 64)
    next(batches.train(0, 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in batches.train(10**6, 10**6 + 50):
        pass
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000  # kB; the windows have 13 MB


def test_types_and_heads_of_files(data):
    """uint32 where the sidecar says so; the head of llm.c's files is no token; a vocabulary of one's own."""
    assert load("tokens", str(data), context=CONTEXT, vocabulary=50304).classes == 50304
    for name in ("train_000.bin", "train_001.bin", "val.bin"):
        values = np.fromfile(data / name, np.uint16)
        head = np.zeros(256, np.int32)
        head[:3] = 20240520, 1, len(values)
        (data / name).write_bytes(head.tobytes() + values.tobytes())
    headed = tokens.load_tokens(str(data), CONTEXT)
    assert headed.train.examples == 72
    assert whole(headed.train.read(np.array([42]))).tolist() == [list(range(1000, 1008))]
    for name in ("train_000.bin", "train_001.bin", "val.bin"):
        nano(data / name, range(100_000, 100_200), np.uint32)
    (data / "tokens.json").write_text('{"dtype": "uint32"}')
    wide = tokens.load_tokens(str(data), CONTEXT)
    assert wide.classes == 100_224
    assert whole(wide.train.read(np.array([1]))).tolist() == [list(range(100_007, 100_015))]


def emptied(data):
    (data / "train_000.bin").write_bytes(b"")


def odd(data):
    (data / "val.bin").write_bytes(b"x" * 181)


def without_bin(data):
    for path in data.glob("*.bin"):
        path.unlink()


def renamed(data):
    (data / "val.bin").rename(data / "x.bin")


def unchanged(data):
    pass


def sidecar(**about):
    def change(data):
        nano(data / "train_001.bin", range(1000, 1216))  # as uint32 too
        (data / "tokens.json").write_text(json.dumps(about))

    return change


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (emptied, {}, r"train_000\.bin is empty: make it anew or remove it"),
        (odd, {}, r"val\.bin is cut off: its 181 bytes are no whole number of uint16"),
        (without_bin, {}, r"d has no train\*\.bin \(it has no \.bin\): python -m depthmup\.data\.prepare_tokens"),
        (renamed, {}, r"d has no val\*\.bin \(it has train_000\.bin, train_001\.bin, x\.bin\)"),
        (unchanged, dict(data_dir="no/such"), "no/such does not exist: give a folder of"),
        (unchanged, dict(data_dir=__file__), "test_tokens.py is a file: give a folder of"),
        (unchanged, dict(context=300), r"train_000\.bin has 300 tokens, and data\.context = 300 needs 301"),
        (unchanged, dict(context=50), r"val\.bin has 90 tokens, and data\.context = 50 needs 101"),
        (unchanged, dict(vocabulary=2089), r"has the token 2089, and the vocabulary has 2089: set data\.vocabulary to"),
        (sidecar(dtype="uint16", vocabulary=9, largest=9), {}, "has the token 9, and the vocabulary has 9"),
        (sidecar(dtype="uint32"), {}, r"vocabulary of \d+, more than 1048576: are its tokens uint32\?"),
        (sidecar(dtype="uint8"), {}, r"tokens\.json is no description of tokens \(dtype is one of uint16, uint32"),
        (sidecar(files={}), {}, r"tokens\.json is no description of tokens \('dtype'\): make the folder anew"),
        (sidecar(dtype="uint16", files={}), {}, r"tokens\.json does not list train_000\.bin: make the folder anew"),
        (unchanged, dict(image_size=8), "data.image_size is for patches, .*, not for tokens"),
        (unchanged, dict(name="text", vocabulary=8), "data.vocabulary is for tokens, not for text: leave it unset"),
    ],
)
def test_what_are_no_tokens(change, options, message, data):
    change(data)
    with pytest.raises(ValueError, match=message) as error:
        load(**{"name": "tokens", "data_dir": str(data), **options})
    assert "\n" not in str(error.value)


def test_tokens_beyond_the_vocabulary_are_not_trained_on(data):
    """Where a folder is too large to be looked through, the batch that has them says so."""
    (data / "tokens.json").write_text('{"dtype": "uint16", "vocabulary": 64, "largest": 0}')
    batches = Batches(load("tokens", str(data), context=CONTEXT), BATCH)
    with pytest.raises(ValueError, match=r"\.bin has the token \d+, and the vocabulary has 64: set data.vocabulary"):
        list(batches.train(0, 18))
    (data / "train_001.bin").write_bytes(b"12" * 20)
    with pytest.raises(ValueError, match=r"train_001\.bin has become shorter since the training began"):
        batches.dataset.train.read(np.array([71]))


TEXTS = {
    "a.txt": "The first text.\r\nIt has two lines.\n",
    "b/c.md": "Ünïcödé 😀 " * 400,
    "b/copy.md": "Ünïcödé 😀 " * 400,
}


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "t" / "b").mkdir(parents=True)
    for name, text in {**TEXTS, ".hidden": "no"}.items():
        (tmp_path / "t" / name).write_text(text, newline="")
    return tmp_path / "t"


def joined(out):
    return np.concatenate([np.fromfile(out / f"{name}.bin", np.uint16) for name in ("train", "val", "test")])


def test_prepared_bytes(texts, tmp_path, monkeypatch):
    """All bytes of each content once, an end behind each; in pieces as whole; a sidecar knows its files."""
    monkeypatch.setattr("depthmup.data.prepare_tokens.PIECE", 100)
    about = write_tokens(text_files([texts]), tmp_path / "out")
    contents = sorted(bytes(joined(tmp_path / "out").astype(np.uint8)).decode().split("\0"))
    assert contents == ["", TEXTS["a.txt"], TEXTS["b/c.md"]]
    assert about["text_files"] == 2
    assert (about["vocabulary"], about["dtype"], about["tokenizer"]) == (256, "uint16", "bytes")
    counts = [about["files"][f"{name}.bin"]["tokens"] for name in ("train", "val", "test")]
    assert counts == [sum(counts) - 2 * round(sum(counts) / 100), *[round(sum(counts) / 100)] * 2]
    assert {path.name for path in tmp_path.iterdir()} == {"t", "out"}  # nothing half-made beside it
    assert load("tokens", str(tmp_path / "out"), context=8).classes == 256
    with pytest.raises(ValueError, match="out is there already: remove it, or give another --out"):
        write_tokens(text_files([texts]), tmp_path / "out")
    swapped = np.fromfile(tmp_path / "out" / "val.bin", np.uint16)[::-1]
    swapped.tofile(tmp_path / "out" / "val.bin")
    with pytest.raises(ValueError, match=r"tokens.json describes another val.bin, of \d+ tokens; the file has \d+"):
        tokens.load_tokens(str(tmp_path / "out"))
    (tmp_path / "out" / "val.bin").rename(tmp_path / "out" / "val2.bin")
    with pytest.raises(ValueError, match=r"tokens.json lists val.bin, which is not there: make the folder anew"):
        tokens.load_tokens(str(tmp_path / "out"))


def test_prepared_by_a_tokenizer(tmp_path):
    """A BPE of the text: the same from the same text on any number of threads, back to the text, used again."""
    tokenizers = pytest.importorskip("tokenizers")
    files = sorted((ROOT / "depthmup" / "data").glob("*.py"))
    program = (
        "import pathlib, sys; from depthmup.data.prepare_tokens import write_tokens\n"
        "files = sorted(pathlib.Path('depthmup/data').glob('*.py'))\n"
        "write_tokens(files, pathlib.Path(sys.argv[1]), train_vocabulary=600)"
    )
    threads = {**os.environ, "RAYON_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", program, tmp_path / "one"], cwd=ROOT, env=threads, check=True)
    about = write_tokens(files, tmp_path / "out", train_vocabulary=600)
    assert json.loads((tmp_path / "one" / "tokens.json").read_text()) == about
    assert (tmp_path / "one" / "tokenizer.json").read_text() == (tmp_path / "out" / "tokenizer.json").read_text()
    loaded = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    end = loaded.token_to_id("<|endoftext|>")
    assert about["end_of_text"] == end
    whole_text = joined(tmp_path / "out").tolist()
    assert whole_text.count(end) == len(files)  # those that the sources write are text
    pieces = loaded.decode(whole_text, skip_special_tokens=False).split("<|endoftext|>")
    assert "".join(sorted("".join(pieces))) == "".join(
        sorted("".join(f.read_text() for f in files).replace("<|endoftext|>", ""))
    )
    again = write_tokens(files, tmp_path / "again", tokenizer=str(tmp_path / "out" / "tokenizer.json"))
    assert again["files"] == about["files"]
    without = write_tokens(files, tmp_path / "without", str(tmp_path / "out" / "tokenizer.json"), end_of_text="")
    assert len(joined(tmp_path / "without")) == len(whole_text) - len(files)
    assert without["end_of_text"] is None
    assert load("tokens", str(tmp_path / "out")).classes == 600


def test_what_cannot_be_prepared(texts, tmp_path, monkeypatch, capsys):
    pytest.importorskip("tokenizers")
    (texts / "bad.txt").write_bytes(b"\xff\xfe")
    (texts / "zero.txt").write_bytes(b"a\0b")
    (texts / "few.txt").write_text("few")
    (texts / "x.json").write_text("{}")
    good, out = str(texts / "a.txt"), f"--out={tmp_path / 'out'}"
    for arguments, message in (
        ([str(texts / "bad.txt"), out], "bad.txt is no text in UTF-8 ('utf-8' codec can't decode"),
        ([str(texts / "zero.txt"), out], "zero.txt is no text in UTF-8 (it has a zero byte): leave it out"),
        ([str(texts / "few.txt"), out], "the text has 4 tokens, too few to hold out 0.02 of them: give more text"),
        ([str(texts / "no.txt"), out], "no.txt does not exist: give text files, or folders of them"),
        ([good], "give FILES and --out=DIR"),
        ([good, out, "--held_out=1"], "--held_out must be above 0 and below 1, got 1"),
        ([good, out, "--tokenizer=gpt2"], "--tokenizer=gpt2: there is no such file: give bytes, or a tokenizer.json"),
        ([good, out, f"--tokenizer={texts / 'x.json'}"], "x.json is no tokenizer.json of the library tokenizers: "),
        ([good, out, "--train_vocabulary=9"], "--train_vocabulary must be 257 to 1048576, got 9"),
        ([good, out, "--train_vocabulary=9999"], "tokens alone: lower --train_vocabulary=9999"),
    ):
        monkeypatch.setattr(sys, "argv", ["prepare_tokens", *arguments])
        from depthmup.data.prepare_tokens import main

        with pytest.raises(SystemExit) as stopped:
            main()
        assert message in str(stopped.value)
        assert "\n" not in str(stopped.value)
        assert not (tmp_path / "out").exists()
        assert not list(tmp_path.glob(".out*"))


def test_the_corpus_is_the_pinned_one(tmp_path, monkeypatch):
    """The list is that of the installed packages; another package is named; what was made is used again."""
    import tomllib

    from depthmup.data import python_sources

    pinned = tomllib.loads(python_sources._pins().read_text())
    packages = pinned["packages"]
    assert set(packages) == set(PACKAGES)
    assert len(checked_files(packages)) == sum(package["files"] for package in packages.values())
    assert sum(package["bytes"] for package in packages.values()) > 10**8
    assert all(package["licence"] not in ("", "unknown") for package in packages.values())

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    changes = {
        "numpy is .*, not 1.0 .and 1 packages more.: pip install -r requirements.txt, or set data.data_dir": {
            "numpy": packages["numpy"] | {"version": "1.0"},
            "jax": packages["jax"] | {"version": "2"},
        },
        "rich .* has other files than the published ones: pip": {"rich": packages["rich"] | {"digest": "0"}},
        "nosuch is not installed: pip": {"nosuch": packages["rich"]},
    }
    for message, change in changes.items():
        with pytest.raises(
            ValueError, match=f"data.name=tokens without data.data_dir needs the pinned packages: {message}"
        ):
            checked_files(change)

    pytest.importorskip("tokenizers")
    monkeypatch.setattr(python_sources, "VOCABULARY", 400)
    few = tmp_path / "few.toml"
    rich = {key: packages["rich"][key] for key in ("version", "digest")}
    lines = ['tokenizer = "BPE"', 'tokens_digest = "0"', "[packages.rich]", *(f'{k} = "{v}"' for k, v in rich.items())]
    few.write_text("\n".join(lines))
    monkeypatch.setattr(python_sources, "_pins", lambda: few)
    with pytest.raises(
        ValueError, match=r"the tokens of the Python sources: the tokens are not the expected ones \(BPE\)"
    ):
        tokens_folder()
    assert not list((tmp_path / "depthmup").iterdir())
    monkeypatch.setattr(python_sources, "tokens_digest", lambda about: "0", raising=True)
    monkeypatch.setattr("depthmup.data.prepare_tokens.tokens_digest", lambda about: "0")
    made = tokens_folder()
    monkeypatch.setattr(python_sources, "checked_files", None)
    assert tokens_folder() == made
    assert load("tokens", None, context=32).classes == 400


def test_sources_leave_out_what_is_no_code():
    numpy = sources("numpy")
    assert isinstance(numpy, PackageSources)
    assert not [path for path in numpy.files if path.suffix != ".py" or path.name == "__config__.py"]


def test_train_and_go_on(call, data, tmp_path, monkeypatch):  # noqa: F811
    """By the command: a run that is stopped in its second epoch and started again ends as one that was left alone."""
    options = ("train", "--config=configs/text_gpt.py", *SMALL, f"--config.data.data_dir={data}", "--config.epochs=2.0")
    options += ("--config.checkpoint.every=5 steps",)
    done = call(*options, f"--workdir={tmp_path / 'whole'}")
    assert done.returncode == 0, done.stderr
    assert "width 16, depth 2: 30 steps of 4 examples on 1 x cpu" in done.stdout
    calls = itertools.count()

    def fails(*arguments):
        if next(calls) == 24:
            raise ValueError("the disk is gone")
        return shuffled(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("depthmup.data.pipeline.shuffled", fails)
        done = call(*options, f"--workdir={tmp_path / 'parts'}")
        assert (done.returncode, done.stderr) == (2, "error: the disk is gone\n")
    done = call(*options, f"--workdir={tmp_path / 'parts'}")
    assert done.returncode == 0, done.stderr
    assert next(calls) < 40  # it has not begun anew
    whole, parts = ((tmp_path / name / "metrics.json").read_text() for name in ("whole", "parts"))
    whole, parts = json.loads(whole)["metrics"], json.loads(parts)["metrics"]
    assert {k: v for k, v in whole.items() if "loss" in k} == {k: v for k, v in parts.items() if "loss" in k}
    load.cache_clear()
    nano(data / "val.bin", range(2001, 2091))
    done = call(*options, f"--workdir={tmp_path / 'whole'}")
    assert_one_line(done, "files of data.data_dir was '605 tokens of 2112, ")

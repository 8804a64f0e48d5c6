"""Records on disk: every example once per epoch, the same batches for any number of readers, resumed at any step."""

import dataclasses
import hashlib
import io
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

import depthmup as dm
from depthmup.data import Augment, Batches, Dataset, Records, Split
from depthmup.data.dataset import CorruptRecord
from depthmup.data.decode import centre_box, decode, random_box
from depthmup.data.stream import Examples, stream
from depthmup.models import ResidualMLP
from depthmup.train import Task, TrialLoop, TrialsOverDevices
from tests.torture import LIMIT

ROOT = Path(__file__).parent.parent
EXAMPLES, SIZE, BATCH, SEED = 90, 16, 8, 3
NONE = dict(flip=False, rotate=0.0, shear=0.0, scale=(1.0, 1.0), brightness=0.0, contrast=0.0, saturation=0.0)
CROPS = Augment(**NONE, crop=(0.3, 1.0))


def encoded(number, kind="PNG", shape=(20, 24, 3)):
    pixels = np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


class Numbers(tfds.core.GeneratorBasedBuilder):
    """Random images whose file name is their number."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(None, None, 3)),
                "label": tfds.features.ClassLabel(num_classes=10),
                "file_name": tfds.features.Text(),
            }
        )
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(EXAMPLES):
            yield i, {"image": io.BytesIO(encoded(i)), "label": i % 10, "file_name": f"{i}.png"}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Prepared on disk as array_record, no mock, and read as any TFDS data set; `order` is the order of the numbers."""
    builder = Numbers(data_dir=tmp_path_factory.mktemp("tfds"), file_format="array_record")
    builder.download_and_prepare()
    source = builder.as_data_source(split="train", decoders={"image": tfds.decode.SkipDecoding()})
    numbers = np.array([int(source[i]["file_name"].decode().removesuffix(".png")) for i in range(EXAMPLES)])
    return Records(source, np.argsort(numbers).astype(np.int32), 10, SIZE, "numbers, split train")


def examples(records, start=0, stop=11, **options):
    return Examples(records, BATCH, start, stop, **{"crop": (0.3, 1.0), "seed": SEED, **options})


def batches(*arguments, workers=0, **options):
    return [batch for batch, _ in stream(examples(*arguments, **options), workers)]


def test_every_example_once_per_epoch(records):
    """11 batches of 8 in an epoch of 90, the labels say which; the next epoch has another order."""
    labels = np.array([labels for _, labels in batches(records, 0, 22)])
    first, second = labels[:11].ravel(), labels[11:].ravel()
    expected = Batches(dataset_of(records), BATCH, SEED).indices(0, 22) % 10
    np.testing.assert_array_equal(labels, expected)  # as data in memory has them
    assert np.bincount(first, minlength=10).max() <= 9
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("readers", [1, 2, 4])
def test_readers_share_the_same_global_batches(records, readers):
    whole = batches(records)
    parts = [batches(records, shard=(i, readers)) for i in range(readers)]
    for step, (images, labels) in enumerate(whole):
        together = [part[step] for part in parts]
        np.testing.assert_array_equal(np.concatenate([i for i, _ in together]), images)
        np.testing.assert_array_equal(np.concatenate([j for _, j in together]), labels)
    with pytest.raises(ValueError, match="batch_size 8 is not a multiple of the 3 processes"):
        next(stream(examples(records, shard=(0, 3))))


def test_workers_and_restarts_change_nothing(records):
    """Two worker processes; and a stream started in the middle of an epoch."""
    whole, workers, resumed = batches(records), batches(records, workers=2), batches(records, 7, 11)
    for (a, b), (c, d) in zip([*whole, *whole[7:]], [*workers, *resumed], strict=True):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(b, d)


def test_the_same_bits_in_another_process(records):
    """Its crops included, and those of the validation-style order."""
    digest = hashlib.sha256(b"".join(images.tobytes() for images, _ in batches(records))).hexdigest()
    program = (
        "import hashlib, numpy as np\n"
        "from tests.test_stream import *\n"
        "source = [{'image': encoded(i), 'label': i % 10} for i in range(EXAMPLES)]\n"
        "records = Records(source, np.arange(EXAMPLES), 10, SIZE, 'numbers')\n"
        "print(hashlib.sha256(b''.join(images.tobytes() for images, _ in batches(records))).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == digest


def test_workers_leave_nothing_behind(tmp_path):
    """Read to the end, and given up early: no process, no shared memory, no complaint at exit."""
    script = tmp_path / "program.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.test_stream import *\n"
        "if __name__ == '__main__':\n"
        "    source = [{'image': encoded(i), 'label': i % 10} for i in range(EXAMPLES)]\n"
        "    records = Records(source, np.arange(EXAMPLES), 10, SIZE, 'numbers')\n"
        "    print(len(batches(records, 0, 3, workers=2)))\n"
        "    early = stream(examples(records), 1)\n"
        "    next(early)\n"
        "    early.close()\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_workers_end_with_a_process_that_is_killed(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import multiprocessing, sys, time\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.test_stream import *\n"
        "if __name__ == '__main__':\n"
        "    source = [{'image': encoded(i), 'label': i % 10} for i in range(EXAMPLES)]\n"
        "    records = Records(source, np.arange(EXAMPLES), 10, SIZE, 'numbers')\n"
        "    some = stream(examples(records), workers=2)\n"
        "    for _ in range(2):\n"  # one batch of each worker
        "        next(some)\n"
        "    print(len(multiprocessing.active_children()), 'workers', flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "2 workers\n"
    process.kill()
    process.communicate(timeout=LIMIT)  # it returns when no worker holds the pipe any more


def dataset_of(records):
    pixels = np.full(3, 127.5)
    return Dataset(records, records, records, pixels, pixels, (SIZE, SIZE, 3), tuple("0123456789"))


def test_evaluation_is_every_example_once_in_order(records):
    """Filled up with labels -1; images are the centre crop."""
    (images, labels), *rest = Batches(dataset_of(records), BATCH).evaluation(records, 50)
    assert not rest
    np.testing.assert_array_equal(labels, [*(i % 10 for i in range(50)), *[-1] * (256 - 50)])
    with Image.open(io.BytesIO(encoded(7))) as image:
        side = 0.875 * 20
        box = (12 - side / 2, 10 - side / 2, 12 + side / 2, 10 + side / 2)
        expected = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box))
    assert np.abs(images[7].astype(int) - expected).max() <= 1


def test_corrupt_records_are_named_counted_and_skipped_only_if_asked(records, caplog):
    source = [dict(image=encoded(i), label=i % 10, file_name=f"{i}.png") for i in range(EXAMPLES)]
    source[41]["image"] = source[41]["image"][:100]
    source[42]["image"] = b"no image"
    source[43]["label"] = 10
    damaged = Records(source, np.arange(EXAMPLES), 10, SIZE, "numbers, split train")
    with pytest.raises(
        ValueError, match=r"numbers, split train: record 4\d \(4\d.png\) cannot be used: .*skip_corrupt"
    ):
        batches(damaged)
    whole = list(stream(examples(damaged, skip_corrupt=True)))
    assert sum(passed for _, passed in whole) >= 3
    clean = batches(records)
    other = [step for step in range(11) if not np.array_equal(whole[step][0][0], clean[step][0])]
    where = Batches(dataset_of(records), BATCH, SEED).indices(0, 11)
    assert other == [step for step in range(11) if set(where[step]) & {41, 42, 43}]
    for step in set(range(11)) - set(other):
        np.testing.assert_array_equal(whole[step][0][0], clean[step][0])
    feed = Batches(dataset_of(damaged), BATCH, SEED, skip_corrupt=True)
    labels = np.concatenate([labels for _, labels in feed.evaluation(damaged)])
    assert set(np.flatnonzero(labels[:EXAMPLES] < 0)) == {41, 42, 43}
    assert "3 corrupt records were passed over" in caplog.text
    nothing = damaged._replace(source=[{"image": b"", "label": 0}] * EXAMPLES)
    with pytest.raises(CorruptRecord, match="100 records in a row are corrupt"):
        batches(nothing, skip_corrupt=True)


def test_a_corrupt_record_in_a_worker_is_named_too(records):
    source = [dict(image=encoded(i)[:90], label=0, file_name=f"{i}.png") for i in range(EXAMPLES)]
    with pytest.raises(Exception, match=r"record \d+ \(\d+.png\) cannot be used"):
        batches(records._replace(source=source), workers=1)


def test_training_crops_have_the_stated_distribution():
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(300, 300, (0.1, 0.5), rng) for _ in range(4000)])
    widths, heights = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, ratio = widths * heights / 300**2, np.log(widths / heights)
    for values, low, high in ((area, 0.1, 0.5), (ratio, np.log(3 / 4), np.log(4 / 3))):
        assert values.min() >= low - 1e-9
        assert values.max() <= high + 1e-9
        assert values.mean() == pytest.approx((low + high) / 2, abs=4 * (high - low) / np.sqrt(12 * 4000))
        assert values.std() == pytest.approx((high - low) / np.sqrt(12), rel=0.03)
    assert boxes.min() >= 0
    assert boxes.max() <= 300
    assert (boxes[:, 0] / (300 - widths)).mean() == pytest.approx(0.5, abs=0.02)
    wide = np.array([random_box(400, 20, (0.9, 1.0), rng) for _ in range(100)])
    assert (wide[:, 3] <= 20).all()
    assert centre_box(400, 200, 0.875) == (112.5, 12.5, 287.5, 187.5)


def test_decode():
    """An image of the right size is untouched; grey and JPEG of any size become (size, size, 3)."""
    data = encoded(0, shape=(SIZE, SIZE, 3))
    np.testing.assert_array_equal(
        decode(data, SIZE), np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    )
    grey = decode(encoded(1, "PNG", (30, 40)), SIZE)
    assert grey.shape == (SIZE, SIZE, 3)
    np.testing.assert_array_equal(grey[..., 0], grey[..., 2])
    ramp = np.broadcast_to(np.linspace(0, 255, 640)[None, :, None], (480, 640, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(ramp).save(file, "JPEG", quality=95)
    for rng in (None, np.random.default_rng(1)):  # decoded at a fraction of its size: the box must follow
        box = centre_box(640, 480, 0.875) if rng is None else random_box(640, 480, (0.2, 0.3), np.random.default_rng(1))
        row = decode(file.getvalue(), 32, (0.2, 0.3), rng).mean(axis=(0, 2))
        centres = box[0] + (np.arange(32) + 0.5) * (box[2] - box[0]) / 32
        np.testing.assert_allclose(row, centres * 255 / 640, atol=1.5)


def test_training_uses_the_crop_of_the_config(records):
    feed = Batches(dataset_of(records), BATCH, SEED, augment=CROPS)
    images, _ = next(feed.train(0, 1))
    np.testing.assert_array_equal(images, batches(records, 0, 1)[0][0])
    plain, _ = next(dataclasses.replace(feed, augment=dataclasses.replace(CROPS, crop=(1.0, 1.0))).train(0, 1))
    assert not np.array_equal(plain, images)
    prepared = np.asarray(feed.prepare(images, 0))  # nothing is left to do on the device but to normalize
    np.testing.assert_allclose(prepared, images / 127.5 - 1.0, rtol=1e-5, atol=1e-6)


TASK = Task(ResidualMLP(width=16, depth=2, outputs=10), (SIZE, SIZE, 3), "sgd")


def hyper(seed):
    return TASK.hyper(dm.parameterization("depth_mup", base_width=8), 0.1, seed=seed)


def test_training_from_disk_is_training_in_memory(records):
    """The same images as PNG on disk and as pixels in memory, two trials on two devices, flips and colours on."""
    source = [{"image": encoded(i, shape=(SIZE, SIZE, 3)), "label": i % 10} for i in range(EXAMPLES)]
    disk = records._replace(source=source, order=np.arange(EXAMPLES))
    pixels = np.stack([decode(record["image"], SIZE) for record in source])
    memory = Split(pixels, np.arange(EXAMPLES, dtype=np.int32) % 10)
    augment = dataclasses.replace(CROPS, crop=(1.0, 1.0), flip=True, brightness=0.3)
    results = []
    for split in (disk, memory):
        batches = Batches(dataset_of(split), BATCH, SEED, augment)
        assert batches.dataset.in_memory == (split is memory)
        results.append(TrialLoop(TASK, batches, TrialsOverDevices(2)).run([hyper(0), hyper(1)], 13, 5))
    for key, value in results[0].items():
        np.testing.assert_allclose(value, results[1][key], rtol=1e-5, err_msg=key)
    assert results[0]["loss"][0] != results[0]["loss"][1]


SHARDED = """
import dataclasses, sys
import jax
import numpy as np
from tests.test_stream import BATCH, CROPS, EXAMPLES, SEED, SIZE, TASK, encoded, hyper
from depthmup.data import Batches, Dataset, Records
from depthmup.train import BatchOverDevices, TrialLoop

processes, process, port = map(int, sys.argv[1:])
jax.config.update("jax_num_cpu_devices", 2)
if processes > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
source = [{"image": encoded(i), "label": i % 10} for i in range(EXAMPLES)]
split = Records(source, np.arange(EXAMPLES), 10, SIZE, "images")
dataset = Dataset(split, split, split, np.float32(127), np.float32(60), (SIZE, SIZE, 3), tuple("0123456789"))
augment = dataclasses.replace(CROPS, flip=True, brightness=0.3)
loop = TrialLoop(TASK, Batches(dataset, BATCH, SEED, augment), BatchOverDevices())
print("loss", loop.run([hyper(0)], 13, 5)["loss"][0])
"""


def test_two_processes_read_their_parts(tmp_path):
    """Trained and evaluated from disk, with random crops: the loss is that of one process."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = str(server.getsockname()[1])
    losses = []
    for processes in (1, 2):
        commands = [[sys.executable, "-c", SHARDED, str(processes), str(i), port] for i in range(processes)]
        running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for command in commands]
        outputs = [process.communicate(timeout=LIMIT)[0] for process in running]
        losses += [float(output.split()[-1]) for output in outputs]
    assert losses[1] == losses[2]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)

"""Workdirs in buckets, on an object-store server of our own: saved, resumed and reported as in a local folder."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from depthmup import bucket, sweep
from depthmup.files import write_atomically
from depthmup.train import log
from depthmup.train.checkpoint import Checkpoints, load
from depthmup.train.log import MetricsObject
from depthmup.train.run import train_network
from depthmup.train.workdir import OWNER, NotSaved, Workdir, WorkdirError
from depthmup.trials.store import Store
from depthmup.tune.search import search
from tests import object_store, tiny, torture
from tests.torture import ROOT, finish, wait_for

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sessions of aiohttp that gcsfs leaves open
needs_server = pytest.mark.skipif(not object_store.IS_HERE, reason="gcsfs and gcp-storage-emulator are not installed")
slow = pytest.mark.slow
RUN = dict(log_every=1, checkpoint__every="3 steps", evaluate_every="never", optimizer__name="sgd")
SWEEP = dict(sweep__depths=(2, 4), sweep__widths=(), sweep__optimizers=("sgd",), sweep__parameterizations=("mup",))
WITHOUT_JAX = "import sys; sys.modules['jax'] = None; from depthmup import __main__; __main__.main('main.py')"
SWEEP |= dict(sweep__seeds=1, sweep__until="planned", checkpoint__every="3 steps", sweep__calibrate=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server stays the same in a process, since its clients remember it."""
    if not object_store.IS_HERE:
        pytest.skip("gcsfs and gcp-storage-emulator are not installed")
    running = object_store.Server(tmp_path_factory.mktemp("objects"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running
    running.stop()


@pytest.fixture
def place(server, request):
    """A folder for each test, in a bucket that is empty: the server slows down with each object."""
    server.wipe()
    return bucket.folder(f"gs://{object_store.BUCKET}/{request.node.name}")


class Killed(BaseException):
    """Ends a run as a kill does: nothing is written any more."""


def killed_at(step, monkeypatch, what):
    """Make the log of the run end it at this step."""
    real = log.RunLog.__call__

    def report(self, at, metrics):
        real(self, at, metrics)
        if at == step:
            raise Killed

    monkeypatch.setattr(what, report)


@needs_server
def test_a_run_goes_on_bit_for_bit(place, tmp_path, monkeypatch, capsys):
    settings = tiny.settings(**RUN)
    alone = train_network(settings, tmp_path / "alone")
    with monkeypatch.context() as patch:
        killed_at(8, patch, "depthmup.train.log.RunLog.__call__")
        patch.setattr("depthmup.train.log.MetricsObject.close", lambda self: None)
        patch.setattr("depthmup.train.workdir.Owner.close", lambda self: None)
        with pytest.raises(Killed):
            train_network(settings, place)
    last = max(int(path.name) for path in (place / "checkpoints").iterdir())
    (place / "checkpoints" / str(last) / "meta" / "metadata").write_text("{}")
    capsys.readouterr()
    resumed = train_network(settings, place)
    output = capsys.readouterr().out
    assert f"checkpoint {last} cannot be used, moved to {place}/unusable_checkpoints/{last}" in output
    assert f"going on from step {last - 3}" in output
    assert "if it still runs, it ends before it saves again" in output
    assert resumed == alone
    assert outcome(place) == outcome(tmp_path / "alone")
    for best in (False, True):
        (state, meta), (expected, _) = load(place, best), load(tmp_path / "alone", best)
        assert meta["step"] == 11
        for name in expected:
            np.testing.assert_array_equal(state[name], expected[name])
    assert not (place / OWNER).exists()
    with pytest.raises(WorkdirError, match=r"holds results of another config: seed was 0, now it is 1"):
        train_network(tiny.settings(**RUN, seed=1), place)


@needs_server
def test_a_checkpoint_of_two_commits(server, place):
    """A slow machine commits a checkpoint in parts: the server lets TensorStore write a manifest a second time."""
    import tensorstore

    def opened(name, **options):
        database = {"driver": "ocdbt", "base": f"{place}/database/"}
        return tensorstore.open({"driver": "zarr", "kvstore": database, "path": f"{name}/"}, **options).result()

    for name in "ab":
        opened(name, create=True, dtype=np.float32, shape=[4]).write(np.full(4, ord(name), np.float32)).result()
    for name in "ab":
        np.testing.assert_array_equal(opened(name, open=True).read().result(), np.full(4, ord(name)))


@needs_server
def test_a_client_that_sends_nothing_keeps_no_other_waiting(server):
    with socket.create_connection(("127.0.0.1", server.port)):
        address = f"{server.environment['STORAGE_EMULATOR_HOST']}/storage/v1/b/{object_store.BUCKET}"
        assert json.loads(urllib.request.urlopen(address, timeout=30).read())["name"] == object_store.BUCKET


def outcome(workdir):
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if k not in torture.TIMING} for row in rows]
    return json.loads((workdir / "metrics.json").read_text())["metrics"], rows


@needs_server
def test_a_sweep_goes_on_and_reports(place, tmp_path, monkeypatch):
    swept(tiny.settings(**SWEEP), place, tmp_path, monkeypatch)
    assert not list((place / "unfinished").glob("*"))
    assert sweep.compare([place, tmp_path / "alone"], tmp_path).exists()


def swept(settings, place, tmp_path, monkeypatch):
    """A sweep whose second group is lost, and that goes on, beside a local one."""
    real, count = Store.add, iter(range(10))
    alone = sweep.run(settings, tmp_path / "alone", progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "add", lambda self, group: real(self, group) if next(count) == 0 else kill())
        with pytest.raises(Killed):
            sweep.run(settings, place, progress=False)
    result = sweep.run(settings, place, progress=False)
    assert [without(row) for row in result.rows] == [without(row) for row in alone.rows]
    assert result.verdicts == alone.verdicts
    assert str(result.page) == f"{place}/report.html"
    assert result.page.read_text().startswith("<!")
    assert sorted(sweep.load(place)["key"]) == sorted(sweep.load(tmp_path / "alone")["key"])
    curves = [sweep.curves(folder).sort_values(["key", "step"]).to_csv() for folder in (place, tmp_path / "alone")]
    assert curves[0] == curves[1]


def kill():
    raise Killed


def without(row):
    return {name: value for name, value in row.items() if name != "environment"}


@needs_server
def test_the_last_process_is_the_one(place):
    """A process before it stops; parts of a sweep have one each."""
    settings = {"a": 1}
    part, first = Workdir(place, settings, "rows", part="-0-of-2"), Workdir(place, settings, "rows")
    assert not first.alone()
    second = Workdir(place, settings, "rows")
    assert re.match(rf"note: process {os.getpid()} on .* has not left gs://", second.messages[-1])
    with pytest.raises(NotSaved, match=r"was taken over by process \d+ on .*one process at a time"):
        first.check()
    first.close()
    for still in (part, second):
        still.check()
    part.close()
    assert second.alone()
    (place / OWNER).unlink()
    with pytest.raises(NotSaved, match="is gone, and with it what was saved"):
        second.check()
    second.close()


@needs_server
def test_rows_wait_for_the_bucket(place, monkeypatch):
    """They are written now and then, none is lost where the bucket does not answer, and a wrong one is refused."""
    path, answers = place / "metrics.jsonl", [True]

    def write(path, content):
        if not answers[0]:
            raise OSError("no answer")
        write_atomically(path, content)

    monkeypatch.setattr(log, "write_atomically", write)
    file = MetricsObject(path)
    file.append({"step": 1})
    assert not path.exists()
    monkeypatch.setattr(log, "EVERY", 0)
    file._next, answers[0] = 0, False
    with pytest.raises(OSError, match="no answer"):
        file.append({"step": 2})
    answers[0] = True
    file.append({"step": 3, "loss": float("nan")})
    file.flush()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3, "loss": null}\n'
    file.keep(lambda row: row["step"] < 3)
    file.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    path.write_text('{"step": 1}\nnonsense\n')
    with pytest.raises(WorkdirError, match="line 2 is not JSON"):
        MetricsObject(path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gs://bucket", "gs://bucket is no folder in a bucket: give gs://BUCKET/FOLDER"),
        ("gs://", "is no folder in a bucket"),
        ("gs:/bucket/x", "gs:/bucket/x is no workdir: a bucket is gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"),
        ("az://bucket/x", "a bucket is gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"),
        ("s3://bucket/x", "needs the package no_such_package: pip install -e '.[s3]' in a clone of depthmup"),
    ],
)
def test_what_is_no_place(path, message, monkeypatch):
    monkeypatch.setitem(bucket.PACKAGES, "gs", "json")
    monkeypatch.setitem(bucket.PACKAGES, "s3", "no_such_package")
    with pytest.raises(ValueError, match=re.escape(message)):
        bucket.folder(path)


@pytest.mark.parametrize("verb", ["check", "tune"])
def test_verbs_that_need_a_local_folder(verb):
    """One line, of a command that has not imported JAX."""
    code = "import sys; sys.path.insert(0, '.'); from depthmup import __main__, bucket; bucket.PACKAGES['gs'] = 'json'"
    words = [sys.executable, "-c", code + "; __main__.main('main.py')", verb, "--workdir=gs://bucket/x"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    line = f"error: --workdir=gs://bucket/x is for train, sweep, compare: give {verb} a local folder\n"
    assert (ended.returncode, ended.stderr) == (2, line)


@needs_server
def test_a_bucket_that_is_not_there(server):
    with pytest.raises(ValueError, match=r"^the bucket gs://nowhere is not there: make it, or give another$"):
        bucket.check("gs://nowhere/x")
    with pytest.raises(WorkdirError, match="the bucket gs://nowhere is not there"):
        train_network(tiny.settings(), bucket.folder("gs://nowhere/x"))


@needs_server
@pytest.mark.parametrize("code", [401, 403])
def test_a_bucket_without_permission(code):
    """One line, of a command that has not imported JAX."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            body = json.dumps({"error": {"code": code, "message": "no storage.objects.create access"}}).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        environment = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{refusing.server_port}", "GOOGLE_AUTH_DISABLED": "1"}
        ended = subprocess.run(
            [sys.executable, "-c", WITHOUT_JAX, "--workdir=gs://bucket/x"],
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        refusing.shutdown()
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert re.match(
        r"error: gs://bucket/x: .*no storage\.objects\.create access.*check its name, your credentials", line
    )


def test_s3_has_no_checkpoints(monkeypatch):
    monkeypatch.setitem(bucket.PACKAGES, "s3", "json")
    workdir = bucket.folder("s3://bucket/x")
    with pytest.raises(WorkdirError, match=r"Orbax .* writes no checkpoints to s3://: mount the bucket"):
        train_network(tiny.settings(), workdir)
    with pytest.raises(WorkdirError, match=r"by --config\.checkpoint\.every=never$"):
        sweep.run(tiny.settings(**SWEEP), workdir, progress=False)


def test_a_tune_needs_a_lock():
    with pytest.raises(ValueError, match=r"a tune in gs://bucket/x: its choices need a lock.*: give a local workdir"):
        search(None, None, None, 0.1, "gs://bucket/x", False, "")


@needs_server
def test_no_trace_in_a_bucket(place):
    with pytest.raises(ValueError, match=r"--profile writes no trace to gs://.*give it a local --workdir"):
        train_network(tiny.settings(), place, profile=True)


@pytest.mark.parametrize("failures", [0, 2])
def test_checkpoints_that_fail_end_the_run(tmp_path, failures):
    """Not the first, and not one after a whole one."""
    messages, leaf = [], {"w": np.zeros((1,))}
    kept = Checkpoints(tmp_path / "run", {}, failures=failures, say=messages.append)
    in_the_way = tmp_path / "run"
    for step in (1, 3):
        in_the_way.write_text("")
        kept.save(step, leaf)
        in_the_way.unlink()
        kept.save(step + 1, leaf)
        assert kept.has(step + 1)
        kept.close()
        for path in sorted(in_the_way.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        in_the_way.rmdir()
    in_the_way.write_text("")
    kept.save(5, leaf)
    assert len(messages) == 3
    if failures:
        with pytest.raises(
            NotSaved, match=r"^2 checkpoints in a row could not be written to .*; there is none yet\. When"
        ):
            kept.save(6, leaf)
    else:
        kept.save(6, leaf)
    kept.close()


@needs_server
def test_checkpoints_that_fail_in_a_bucket(server):
    messages, leaf = [], {"w": np.zeros((1,))}
    kept = Checkpoints(bucket.folder("gs://nowhere/run"), {}, failures=2, say=messages.append)
    kept.save(1, leaf)
    kept.save(2, leaf)
    with pytest.raises(
        NotSaved, match=r"^2 checkpoints in a row could not be written to gs://nowhere/run/checkpoints;"
    ):
        kept.wait()
    kept.close()
    (line,) = messages
    assert line.startswith("checkpoint 1 could not be written; there is none yet, and training goes on. ")


def command(server, workdir, *arguments, job=torture.ARGUMENTS):
    words = [sys.executable, "main.py", *job[:1], f"--workdir={workdir}", *job[1:], *arguments]
    environment = os.environ | server.environment
    return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@slow
@needs_server
def test_kills(place, server, tmp_path):
    """A run is killed twice, and once loses its bucket for a while: it ends as one that was left alone."""
    assert finish(torture.start(tmp_path))[0] == 0
    for step in (30, 200):
        process = command(server, place)
        wait_for(process, f"step {step}/")
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = command(server, place)
    wait_for(process, "step 300/")
    server.stop()
    time.sleep(3)
    server.start()
    status, output = finish(process)
    assert status == 0, output
    assert outcome(place) == torture.outcome(tmp_path)
    for name, leaf in load(tmp_path)[0].items():
        np.testing.assert_array_equal(load(place)[0][name], leaf)


@slow
@needs_server
def test_kills_of_a_sweep(place, server, tmp_path):
    assert finish(torture.start(tmp_path, job=torture.SWEEP))[0] == 0
    rarely = "--config.checkpoint.every=100 steps"
    for seconds in (1, 4):
        process = command(server, place, rarely, job=torture.SWEEP)
        wait_for(process, " trials")
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    status, output = finish(command(server, place, rarely, job=torture.SWEEP))
    assert status == 0, output
    rows, curves = torture.sweep_outcome(tmp_path)
    assert sorted((place / "results.jsonl").read_text().splitlines()) == rows
    assert sweep.curves(place).sort_values(["key", "step"]).to_csv(index=False) == curves


@slow
@pytest.mark.skipif(not object_store.S3_IS_HERE, reason="s3fs and moto[server] are not installed")
def test_s3_without_checkpoints(tmp_path, monkeypatch):
    """Runs and sweeps; of a sweep that was killed the finished groups stay."""
    place, never = bucket.folder(f"s3://{object_store.BUCKET}/x"), {"checkpoint__every": "never"}
    with object_store.s3() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        settings = tiny.settings(**RUN | never)
        assert train_network(settings, place / "run") == train_network(settings, tmp_path / "run")
        assert outcome(place / "run") == outcome(tmp_path / "run")
        settings = tiny.settings(**SWEEP | never)
        swept(settings, place, tmp_path, monkeypatch)
        with pytest.raises(ValueError, match=r"^the bucket s3://nowhere is not there"):
            bucket.check("s3://nowhere/x")

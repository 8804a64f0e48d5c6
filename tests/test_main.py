"""main.py as a user runs it: one process from its start to its end, the rest by calls in this one."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from absl import flags

from depthmup import cli_flags, find_config
from depthmup.cli import command, verbs
from depthmup.cli.arguments import _Values, check_folder, parse_command
from depthmup.rules.explain import COLUMNS
from tests import tiny
from tests.test_compare import store
from tests.test_report import GRID

# ml_collections reads config files by a way that Python calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")

ROOT = Path(__file__).parent.parent
SMALL = ["--config.model.width=16", "--config.epochs=0.2"]
CHECK = [
    "--config.check.widths=(64,128)",
    "--config.check.depths=()",
    "--config.check.depth=2",
    "--config.check.steps=(1,)",
    "--config.check.optimizers=('adam',)",
]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def process(*arguments):
    return subprocess.run([sys.executable, "main.py", *arguments], cwd=ROOT, capture_output=True, text=True)


def in_a_new_process(*words):
    """(Done of the installed command in a new process, which of JAX and NumPy it has imported)"""
    program = f"""
import sys
sys.argv[1:] = {words!r}
from depthmup.__main__ import main
try:
    main("depthmup")
except SystemExit as end:
    print(end.code, *{{"jax", "numpy"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    *lines, last = done.stdout.splitlines()
    status, *imported = last.split()
    return Done(int(status), "\n".join(lines), done.stderr), set(imported)


@pytest.fixture
def call(monkeypatch, capsys):
    """The same call without a new process: flags are defined, parsed and forgotten; JAX has begun before."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("depthmup.backend.prepare_cpu", lambda: None)

    def run(*arguments):
        before = set(flags.FLAGS)
        monkeypatch.setattr(sys, "argv", ["main.py", *arguments])
        try:
            with pytest.raises(SystemExit) as left:
                command.run_verb(parse_command(sys.argv), "python main.py")
        finally:
            for name in set(flags.FLAGS) - before:
                delattr(flags.FLAGS, name)
            flags.FLAGS.unparse_flags()
        return Done(left.value.code or 0, *capsys.readouterr())

    return run


@pytest.mark.parametrize("words", [[], ["--help"], ["sweep", "--help"], ["-h", "--config=digits"], ["--nokey", "-h"]])
def test_help_needs_no_jax(words):
    """Nor has it read a config."""
    done, imported = in_a_new_process(*words)
    assert (done.returncode, done.stderr, imported) == (0, "", set())
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 110
    assert lines[0].startswith(
        "depthmup sweep [FLAGS]: train at" if words[:1] == ["sweep"] else "depthmup VERB --config"
    )


def test_the_help_has_all_verbs_and_configs():
    lines = cli_flags.help_text("main.py", []).splitlines()
    for name, verb in cli_flags.VERBS.items():
        assert f"  {name:9}  {verb.does}" in lines
    named = {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "}
    assert named == {*cli_flags.VERBS, *find_config.config_names()}
    assert list(cli_flags.VERBS) == [*verbs.VERBS, "law"]  # which needs no config


@pytest.mark.parametrize("verb", cli_flags.VERBS)
def test_the_help_of_a_verb_has_its_flags_alone(verb):
    *_, example = lines = cli_flags.help_text("main.py", [verb, "--help"]).splitlines()
    assert lines[0].endswith(f": {cli_flags.VERBS[verb].does}")
    named = {line.split("--")[1].split("=")[0].split()[0] for line in lines if line.startswith("  --")}
    taken = {name for name, flag in cli_flags.FLAGS.items() if verb in flag.verbs}
    assert named - {"config", "config.KEY", "workdir"} == taken
    assert example == f"Example: main.py {cli_flags.VERBS[verb].example}"
    if verb in verbs.VERBS:
        assert taken <= set(inspect.signature(verbs.VERBS[verb]).parameters) | set(cli_flags.PROCESS)


@pytest.mark.parametrize("verb", verbs.VERBS)
def test_the_example_of_a_verb_is_a_call(verb, call, monkeypatch):
    calls = []
    monkeypatch.setitem(verbs.VERBS, verb, lambda *arguments, **options: calls.append(arguments) or 0)
    assert call(*cli_flags.VERBS[verb].example.split()) == Done(0, "", "")
    assert len(calls) == 1


def test_a_wrong_call_is_known_before_jax_is_there(tmp_path):
    """A workdir that cannot be made; nothing is left of the attempt to write into one that can."""
    for words, message in (
        (["train", "--workdir=/proc/nothing"], "--workdir=/proc/nothing: /proc cannot be written"),
        (["trian", f"--workdir={tmp_path}/a"], "verb 'trian'"),
        (["train", f"--workdir={tmp_path}/a/b", "--json"], "--json is for explain, not for train"),
    ):
        done, imported = in_a_new_process(*words)
        assert_one_line(done, f"error: {message}")
        assert "jax" not in imported
    check_folder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_workdir_that_cannot_be_written(tmp_path, monkeypatch):
    def fails(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", fails)
    with pytest.raises(ValueError, match=r"/a/b: .* cannot be written \(Permission denied\); give another"):
        check_folder(tmp_path / "a" / "b")


def test_train_is_the_default(tmp_path):
    options = ["--config.log_every=1", "--config.log_updates=True", "--profile"]
    done = process("--config=configs/digits.py", *SMALL, f"--workdir={tmp_path}", *options)
    assert done.returncode == 0, done.stderr
    assert "step 4/4: loss" in done.stdout
    assert "| blocks/dense/kernel | (2, 16, 16) | float32 | 512   |" in done.stdout
    assert "depth_mup, sgd, width 16, depth 2: 4 steps of 64 examples on 1 x cpu" in done.stdout
    assert list(tmp_path.glob("profile/**/*.xplane.pb"))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 4]
    assert rows[0]["update_rms/branch/hidden"] > 0
    assert "validation_accuracy" in done.stdout
    saved = json.loads((tmp_path / "metrics.json").read_text())
    assert saved["metrics"]["diverged"] is False
    assert saved["settings"]["model"]["width"] == 16
    assert done.stderr == ""


def test_a_longer_training_starts_anew(call, tmp_path):
    short = ["train", *SMALL, "--config.epochs=0.05", f"--workdir={tmp_path}"]
    assert call(*short).returncode == 0
    assert_one_line(
        call(*short, "--config.epochs=0.1"),
        "epochs was 0.05, now it is 0.1; the schedule of the learning rate is that of the whole training, so that a "
        "longer one starts anew. Give another --workdir, or delete this one",
    )


def test_plan(call):
    done = call("plan", *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("train: residual_mlp, width 16, depth 2, float32, sgd, batch 64, 4 steps, by pmap\n")
    done = call("plan", "--sweep", *SMALL, "--config.sweep.depths=(2,)", "--config.sweep.widths=()")
    assert done.stdout.startswith("sweep: 684 trials; the dearest: residual_mlp, width 16, depth 2")


def test_a_divergence_is_said(call):
    done = call("train", *SMALL, "--config.optimizer.learning_rate=1e6")
    assert done.returncode == 1
    assert "diverged" in done.stdout


def test_explain(call):
    done = call("explain", *SMALL, "--config.optimizer.name=adam", "--config.optimizer.learning_rate=0.01")
    assert done.returncode == 0, done.stderr
    header, columns, *rows, take = done.stdout.splitlines()
    shape = "depth_mup at width 16 (base 32), depth 2 (base 2), 2 blocks (base 2), adam: "
    assert shape + "branch factor 1, output factor 2" in header
    assert columns.split() == [word for name in COLUMNS for word in name.split()]
    assert [row.split()[:4] for row in rows] == [
        ["blocks/dense/kernel", "1", "branch/hidden", "2x16x16"],
        ["read_in/kernel", "1", "input", "64x16"],
        ["readout/kernel", "1", "readout", "16x10"],
    ]
    assert "branches of one weight layer: depth_mup" in take


def test_explain_at_a_step_as_json(call):
    rising = ("explain", *SMALL, "--config.warmup_epochs=0.1", "--config.schedule=constant", "--json")
    first, last = (json.loads(call(*rising, f"--step={step}").stdout) for step in (0, 3))
    rates = [{row["parameter"]: row["lr"] for row in table["rows"]} for table in (first, last)]
    assert rates[0]["blocks/dense/kernel"] == pytest.approx(0.5 * rates[1]["blocks/dense/kernel"])  # two steps
    assert call(*rising, "--step=4").stderr == "error: --step=4 must be from 0 to 3, the last step of this config\n"


def test_explain_what_differs(call):
    done = call("explain", *SMALL, "--diff=digits", "--diff.model.width=16", "--diff.optimizer.learning_rate=0.25")
    _, _, *lines = done.stdout.splitlines()
    assert lines == [
        "branch/hidden (blocks/dense/kernel): LR 0.5 -> 0.25 (x 1/2)",
        "input (read_in/kernel): LR 0.25 -> 0.125 (x 1/2)",
        "readout (readout/kernel): LR 0.25 -> 0.125 (x 1/2)",
    ]


def test_grow(call):
    done = call("grow", "--config=digits", "--width", "512", "--depth=16", "--config.parameterization.name=sp")
    note, line = done.stdout.splitlines()
    assert note == "sp is depth_mup at the shape where it was tuned: width 128, depth 2"
    assert line == (
        "python main.py train --config=digits --config.model.width=512 --config.model.depth=16 "
        "--config.parameterization.name=depth_mup --config.parameterization.base_width=128"
    )
    for arguments, message in (
        ((), "grow needs --width=N or --depth=N of the larger network"),
        (("--width=0", "--depth=4"), "model.width must be at least 1 and less than 1,048,576, got 0"),
        (("--width=64", "--depth=4", "--workdir=runs/none"), "runs/none holds no rows of a sweep"),
    ):
        assert message in call("grow", *arguments).stderr


def test_explain_counts_blocks(call):
    done = call("explain", "--config=configs/default.py:resnet", "--config.model.depth=3")
    assert "depth 3 (base 2), 9 blocks (base 6), sgd: branch factor 0.8165," in done.stdout.splitlines()[0]


def test_calibrate(call):
    """The numbers are those of the functions it stands on; a rule for every line."""
    done = call("calibrate", *SMALL, "--config.model.depth=8", "--config.sweep.seeds=2", "--average=sum")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "residual_mlp, width 16, sgd, depth_mup; 2 seeds" in text
    assert "depth 8: maximal-update learning rate" in text
    assert "note: depth 8 over width 16 is 0.50, above 0.05" in text
    rates = {line.split()[0]: float(line.split()[1]) for line in text.split("by each rule:")[1].strip().splitlines()}
    assert rates["constant"] == 0.5  # the config's, tuned at the base depth 2
    assert (rates["L^-1"], rates["L^-3/2"]) == (0.125, 0.0625)
    assert rates["PathSum"] == pytest.approx(0.5 * (10 / (64 * 11 * 2**5)) ** 0.5, rel=1e-3)
    measured = [
        float(line.split("learning rate ")[1].split()[0]) for line in text.splitlines() if line.startswith("depth ")
    ]
    assert rates["calibrated"] == pytest.approx(0.5 * measured[1] / measured[0], rel=2e-3)
    assert set(rates) == {"constant", "L^-1", "L^-3/2", "PathSum", "calibrated", "relative"}


def test_compare(tmp_path, call):
    """Of rows of the tiny sweep; the page is in --workdir, or in the first folder."""
    study = tiny.study(**GRID)
    folders = [str(store(tmp_path / name, study)) for name in "ab"]
    done = call("compare", *folders)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"comparison: {folders[0]}/compare.html\n"
    done = call("compare", *folders, f"--workdir={tmp_path / 'c'}")
    assert done.stdout == f"comparison: {tmp_path}/c/compare.html\n"
    assert (tmp_path / "c" / "compare.html").exists()


def test_check_exit_status(tmp_path, call):
    good = call("check", *CHECK, "--config.check.seeds=16", "--config.check.tolerance=0.3", f"--workdir={tmp_path}")
    assert good.returncode == 0, good.stdout + good.stderr
    assert (tmp_path / "coordinate_check_adam.png").read_bytes().startswith(b"\x89PNG")
    bad = call("check", *CHECK, "--config.parameterization.name=sp")
    assert bad.returncode == 1
    assert "2^-10: not ok (" in bad.stdout
    undecided = call("check", *CHECK, "--config.check.seeds=1", "--config.check.max_seeds=1")
    assert undecided.returncode == 3
    assert "2^-10: undecided (" in undecided.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "--config.model.depht=3"], "unknown key 'config.model.depht'; did you mean 'config.model.depth'?"),
        (["explain", "--config.model.depth=abc"], "--config.model.depth=abc"),
        (["explain", "--config=configs/nope.py"], "configs/nope.py"),
        (["train", "--workdir=main.py/x"], "is, or is inside, a file"),
        (
            ["calibrate", "--config=configs/default.py:simple_resnet", "--config.data.name=patches"],
            "parameterization.base_depth = 2, where the learning rate was tuned, is no depth of model: SimpleResNet",
        ),
        (["calibrate", "--average=mean"], "unknown --average 'mean'"),
        (["sweep", "--average=sum"], "--average is for calibrate, not for sweep"),
        (["swep"], "verb 'swep': give one of train, sweep, tune, check, calibrate, explain, grow"),
        (["sweep"], "sweep needs --workdir=DIR"),
        (["sweep", "runs/a"], "verb 'sweep runs/a': give one of"),
        (["compare", "configs"], "compare takes 2 to 26 workdirs of sweeps, got 1: compare DIR DIR ..."),
        (["compare", "configs", "docs"], "configs holds no settings.json: give the --workdir of main.py sweep"),
        (
            ["sweep", "--dry_run", "--config.sweep.seeds=1000000"],
            "912,000,000 trials, more than sweep.max_trials = 20,000",
        ),
        (["train", "--config.model.depth=0"], "model.depth must be at least 1 and less than 1,048,576, got 0"),
        (["train", "--config.parallel.devices=64"], "parallel.devices = 64, but there are"),
        (["train", "--profile"], "--profile needs --workdir=DIR"),
        (["check", "--profile"], "--profile is for train, not for check"),
        (["plan", "--topology=v5e:4x5"], "unknown topology 'v5e:4x5'; did you mean"),
        (["plan", "--config.parallel.devices=3"], "64 cannot be split evenly over 3 devices"),
        (["train", "--topology=v5e:4x4"], "--topology is for plan, not for train"),
        (["train", "--processes=2"], "--coordinator, --processes and --process are for --distributed"),
    ],
)
def test_errors_are_one_line(arguments, message, call):
    done = call(*arguments)
    assert_one_line(done, message)


@pytest.mark.parametrize("arguments", [["--config.model.depht=3"], ["swep"]])
def test_errors_are_one_line_of_a_process(arguments):
    """A mistake in a flag and a mistake that main finds."""
    assert_one_line(process(*arguments), arguments[0].split(".")[-1].split("=")[0])


def assert_one_line(done, message):
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


@pytest.mark.parametrize(
    ("words", "values"),
    [("sp,depth_mup", ("sp", "depth_mup")), ("sp", ("sp",)), ("", ()), ("2,4", (2, 4)), ("'a,b'", ("a,b",)),
     ("grid(-6,0,5)", ("grid(-6,0,5)",))],
)  # fmt: skip
def test_a_list_of_names_needs_no_quotes(words, values):
    assert _Values().parse(words) == values

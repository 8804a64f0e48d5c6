"""`sweep.grow` from planted rows: nothing is trained."""

import json
import math
import re

import pytest

from depthmup import sweep
from depthmup.files import digest
from depthmup.report.grow import swept_settings
from depthmup.settings import SettingsError, defaults, flat, from_config, put
from depthmup.sweep import grow
from depthmup.train.build import steps_of
from depthmup.train.workdir import CHECKSUM, WorkdirError
from depthmup.trials.config_study import ConfigStudy
from tests import tiny
from tests.test_compare import store
from tests.test_main import call  # noqa: F401 - a fixture
from tests.test_report import GRID, planted

# ml_collections reads config files by a way that Python calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")

ADAM = {"sweep__optimizers": ("adam",), "sweep__log2_learning_rates": {"adam": (-12.0, 2.0)}}


def finished(tmp_path, optimum=None, **changes):
    settings = tiny.settings(**GRID | changes)
    planted(ConfigStudy(settings), optimum).to_json(tmp_path / "results.jsonl", orient="records", lines=True)
    return settings


def test_the_best_learning_rate_of_the_smallest_size(tmp_path):
    settings = finished(tmp_path)
    grown = sweep.grow(
        put(settings, {"parameterization.name": "mup", "optimizer.learning_rate": 3.0}), 64, 48, tmp_path
    )
    assert math.log2(grown.changes["optimizer.learning_rate"]) == pytest.approx(-1, abs=0.1)
    assert set(grown.changes) == {"model.width", "model.depth", "optimizer.learning_rate"}
    assert (grown.settings.model.width, grown.settings.model.depth) == (64, 48)
    assert "at depth 3; depth 3 to 24: does not transfer: " in grown.notes[0]
    assert flat(grown.settings)["optimizer.learning_rate"] == grown.changes["optimizer.learning_rate"]


def test_a_prediction_that_is_sure_enough_is_taken(tmp_path):
    """A target that is near: along the one axis that was swept. Else the rate is copied, and a note says why."""
    settings = put(finished(tmp_path), {"parameterization.name": "mup"})
    grown = sweep.grow(settings, 16, 30, tmp_path)
    rate = grown.changes["optimizer.learning_rate"]
    assert math.log2(rate) == pytest.approx(-1 - 1.5 * math.log2(30 / 3), abs=0.3)
    printed = float(re.search(r"predicts learning rate (\S+) \[", grown.notes[1])[1])
    assert printed == pytest.approx(rate, rel=0.01)
    assert "% on average, at most " in grown.notes[1]
    low, high = grown.expected
    assert grown.notes[1].endswith(f" [{low:.4g}, {high:.4g}]")
    assert "; 0.493 would be copied; expected loss 0.1" in grown.notes[1]
    assert low < 0.1 < high < 0.11  # the best loss of planted rows
    for width, depth, reason in ((16, 2, "depth 2 is below the rows'"), (16, 3000, "octaves, and 2 are too many")):
        copied = sweep.grow(settings, width, depth, tmp_path)
        assert math.log2(copied.changes["optimizer.learning_rate"]) == pytest.approx(-1, abs=0.1)
        assert copied.notes[1].startswith("learning rate 0.493 is copied from the smallest size: ")
        assert reason in copied.notes[1]


def test_a_batch_rule_is_not_applied_twice(tmp_path):
    """Its factor is in the rate that the law predicts, and comes with the rule again."""
    settings = put(finished(tmp_path), {"parameterization.name": "mup"})
    run = {"batch_size": 2 * settings.data.batch_size, "epochs": settings.epochs}
    octaves = []
    for rule in ("none", "sde"):
        (note,) = [n for n in sweep.grow(settings, 16, 30, tmp_path, **run, batch_rule=rule).notes if "predicts" in n]
        octaves.append(math.log2(float(re.search(r"predicts (?:learning rate )?(\S+) \[", note)[1])))
    assert octaves[0] - octaves[1] == pytest.approx(1, abs=0.05)


def test_what_a_sweep_cannot_tell(tmp_path):
    settings = finished(tmp_path)
    message = r"no best learning rate of ntp with sgd .* \(curves: depth_mup with sgd, mup with sgd\)"
    with pytest.raises(SettingsError, match=message):
        sweep.grow(put(settings, {"parameterization.name": "ntp"}), 64, 48, tmp_path)
    settings = finished(tmp_path, sweep__axes="parameterization.gamma0 = 0.5, 1.0")
    with pytest.raises(SettingsError, match=r"without sweep\.axes; this one has gamma0 0\.5, gamma0 1"):
        sweep.grow(settings, 64, 48, tmp_path)


def test_sp_goes_on_from_the_shape_where_it_was_tuned(tmp_path):
    settings = put(
        finished(tmp_path, lambda point: -1.0, sweep__parameterizations=("sp",)), {"parameterization.name": "sp"}
    )
    changes = sweep.grow(settings, 64, 48, tmp_path).changes
    assert changes["parameterization.name"] == "depth_mup"
    assert changes["parameterization.base_width"] == settings.model.width
    assert changes["parameterization.base_depth"] == 3


def test_a_larger_batch_and_a_longer_training():
    """The tuned training is the base, the rule is said, and what it cannot say is refused."""
    tuned = tiny.settings()
    grown = grow(tuned, 32, 4, batch_size=256, epochs=1.0, batch_rule="timescale")
    p = grown.settings.parameterization
    assert (p.base_batch_size, p.base_steps, p.batch_rule) == (tuned.data.batch_size, steps_of(tuned), "timescale")
    assert any("batch_rule 'timescale': weight decay x" in note for note in grown.notes)
    again = grow(grown.settings, 32, 4, epochs=2.0)  # the base stays
    assert again.settings.parameterization == p
    assert again.settings.epochs == 2.0
    with pytest.raises(SettingsError, match="no rule says how: give --batch_rule, one of none, sde"):
        grow(tuned, 32, 4, batch_size=256)
    with pytest.raises(SettingsError, match="batch_rule 'sde' is for as many examples as at the base"):
        grow(tuned, 32, 4, epochs=8.0, batch_rule="sde")


def test_the_settings_of_a_sweep(tmp_path):
    """Its only optimizer, its shape and its training; what a call gives stays as it is given."""
    workdir = store(tmp_path, tiny.study(**GRID | ADAM, model__width=24, epochs=1.5, loss="mse"))
    given_settings = put(defaults(), {"epochs": 3.0, "optimizer.weight_decay": 0.5})
    s = swept_settings(given_settings, workdir)
    assert (s.model.width, s.epochs, s.loss, s.optimizer.weight_decay) == (24, 1.5, "mse", 0.0)
    assert (s.optimizer.name, s.parameterization.name) == ("adam", "depth_mup")
    s = swept_settings(put(given_settings, {"parameterization.name": "mup"}), workdir, given=["epochs"])
    assert (s.epochs, s.loss, s.parameterization.name) == (3.0, "mse", "mup")
    assert swept_settings(given_settings, tmp_path / "nothing") == given_settings
    swept = swept_settings(given_settings, workdir, given=["sweep.seeds", "sweep.log2_learning_rates.adam"])
    assert swept.sweep.log2_learning_rates["adam"] == (-12.0, 2.0)  # as the sweep had it, whatever a call gives


def test_a_sweep_of_several_optimizers(tmp_path):
    """That of the call is taken if the sweep has it; else nothing tells which one."""
    rates = {"sweep__log2_learning_rates": {"adam": (-12.0, 2.0), "adamw": (-12.0, 2.0)}}
    workdir = store(tmp_path, tiny.study(**GRID | rates | {"sweep__optimizers": ("adam", "adamw")}))
    assert swept_settings(put(defaults(), {"optimizer.name": "adamw"}), workdir).optimizer.name == "adamw"
    with pytest.raises(SettingsError, match=r"give --config\.optimizer\.name, one of adam, adamw: the sweep in .* has"):
        swept_settings(defaults(), workdir)
    assert swept_settings(defaults(), workdir, given=["optimizer.name"]).optimizer.name == "sgd"  # and `grow` refuses


def test_a_workdir_of_a_training(tmp_path):
    settings = {"model.name": "mlp"}
    (tmp_path / "settings.json").write_text(json.dumps({**settings, CHECKSUM: digest(settings)}))
    with pytest.raises(WorkdirError, match=r"settings\.json is not that of a sweep of a config: give the --workdir of"):
        swept_settings(defaults(), tmp_path)


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_command_of_a_sweep_with_one_optimizer(tmp_path, call, seeds):  # noqa: F811
    """It needs no config: the command has all settings of the sweep, a rounded learning rate and the verdict."""
    study = tiny.study(**GRID | ADAM | {"sweep__seeds": seeds}, epochs=1.5)
    workdir = store(tmp_path, study, planted(study, lambda point: -1.03))
    done = call("grow", "--depth=48", "--workdir", str(workdir))
    note, _, line = done.stdout.splitlines()
    verdict = "transfers: 0.4" if seeds == 3 else "undecided: one seed does not decide"
    assert "depth_mup, adam: best learning rate 0.4" in note
    assert f"at depth 3; depth 3 to 24: {verdict}" in note
    words = line.split()
    (rate,) = (word for word in words if word.startswith("--config.optimizer.learning_rate="))
    assert 3 <= len(rate.partition("=0.")[2]) <= 4
    (expected,) = (word for word in words if word.startswith("--expect="))
    assert set(words) - {rate, expected} == {
        "python", "main.py", "train", "--config.model.width=16", "--config.model.depth=48", "--config.epochs=1.5",
        "--config.parameterization.base_width=8", "--config.optimizer.name=adam",
    }  # fmt: skip
    assert rate in call("grow", "--config=digits", "--depth=48", f"--workdir={workdir}").stdout


def test_the_command_of_a_sweep_of_another_family(tmp_path, call):  # noqa: F811
    config = tiny.config(**GRID | {"sweep__parameterizations": ("depth_mup",)})
    vit = put(defaults("vit"), {"model.patch": 4, "data.name": "patches"})
    sweep_settings = from_config(config).sweep
    study = ConfigStudy(put(vit, {"sweep": sweep_settings}))
    workdir = store(tmp_path, study)
    line = call("grow", "--width=128", f"--workdir={workdir}", "--config.parallel.devices=1").stdout.splitlines()[-1]
    assert line.startswith(
        "python main.py train --config.parallel.devices=1 --config=default:vit --config.model.width=128"
    )
    assert "--config.model.patch=4" in line
    assert "--config.data.name=patches" in line


def test_a_run_says_whether_its_loss_came_out_as_expected(tmp_path, call):  # noqa: F811
    config = ("--config=digits", "--config.epochs=0.1", "--config.model.width=8", "--config.model.depth=2")
    done = call("train", *config, f"--workdir={tmp_path}", "--expect=0.5,5")
    line = done.stdout.splitlines()[-1]
    assert "is inside the expected [0.5, 5]" in line
    assert (tmp_path / "expected.txt").read_text() == f"{line}\n"
    done = call("train", *config, f"--workdir={tmp_path}", "--expect=0.01,0.02")
    assert "is above the expected [0.01, 0.02]: the law of the sweep does not hold here" in done.stdout
    for text in ("0.2", "2,1", "a,b", "1,2,3"):
        assert f"--expect={text} must be LOW,HIGH" in call("train", *config, f"--expect={text}").stderr

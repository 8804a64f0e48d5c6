"""`m.tune` with a target: its choices, their log, what it says, and what it refuses."""

import collections
import contextlib
import functools
import json
import math
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup as dm
from depthmup import fit
from depthmup.cli import verbs
from depthmup.report import large_run
from depthmup.settings import LEARNING_RATE, column, put
from depthmup.train.stop import Stopped
from depthmup.train.workdir import WorkdirError
from depthmup.trials import group, remote
from depthmup.trials.choices import CHOICES
from depthmup.trials.engine import train
from depthmup.trials.group import OutOfMemory
from depthmup.trials.plan import combinations, grid_trials
from depthmup.trials.seconds import Seconds, Timing
from depthmup.trials.store import Finished, Store, load
from depthmup.trials.study import Size, Trial, judged_value
from depthmup.tune import search
from depthmup.tune.model_sweep import study_of
from tests import tiny

WIDTH, DEPTH, INPUTS, CLASSES, STEPS = 8, 1, 6, 4, 20
TARGET = {"width": 64, "steps": 200}
SLOPE = -0.3  # octaves by which the planted best rate falls where the steps double


def net(width, depth, key):
    keys = jax.random.split(key, depth + 2)
    return {
        "embed": jax.random.normal(keys[0], (INPUTS, width)) / INPUTS**0.5,
        "blocks": [jax.random.normal(k, (width, width)) / width**0.5 for k in keys[2:]],
        "head": jax.random.normal(keys[1], (width, CLASSES)) / width**0.5,
    }


def call(params, x):
    h = x @ params["embed"]
    for weight in params["blocks"]:
        h = h + jax.nn.relu(h) @ weight
    return h @ params["head"]


def loss(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def batches(step):
    x = jax.random.normal(jax.random.fold_in(jax.random.key(1), step), (16, INPUTS))
    return x, jnp.argmax(x[:, :CLASSES], -1)


@pytest.fixture(scope="module")
def m():
    return dm.setup("depth_mup", net, batches(0)[0], width=WIDTH, depth=DEPTH, base=(WIDTH, DEPTH), call=call)


def largest(law, candidates, target, *, budget=math.inf, tolerance=0.0):
    """Stands for `fit.design`: the largest trainings, eight at least; each is expected to take 1% off the cost."""
    worst, costs = law.at(**target).worst_cost, np.array(candidates["cost"])
    rows, spent = [], [0.0]
    for i in np.argsort(np.where(costs <= max(budget / 8, costs.min()), -costs, costs), kind="stable").tolist():
        if spent[-1] + costs[i] <= budget and worst * 0.99 ** len(rows) > tolerance:
            rows.append(i)
            spent.append(spent[-1] + costs[i])
    left = worst * 0.99 ** np.arange(len(rows) + 1)
    return fit.Design(tuple(rows), np.array(spent), left, left)


def seconds_of(size):
    return 1e-3 * size.width**2 * size.steps


def best(size):
    return -7 + SLOPE * math.log2(size.steps / STEPS)


def best_decay(size):
    return -2 - 0.5 * math.log2(size.steps / STEPS)


def row_of(trial, searched=LEARNING_RATE):
    """Of a planted law of what is searched for."""
    size, value = trial.point.size, judged_value(searched, trial.leaves[searched])
    off = math.log2(value) - (best_decay if searched == "optimizer.weight_decay" else best)(size)
    noise = 1e-3 * np.random.default_rng(int(trial.key[:8], 16)).standard_normal()
    diverged = off > 4
    value = math.exp(0.02 * off**2 - 0.1 * math.log2(size.width * size.steps) + noise)
    row = {column(key): value for key, value in trial.leaves.items()}
    row |= {"key": trial.key, "last_loss": math.nan if diverged else value, "diverged": diverged}
    return row | {"learning_rate": trial.learning_rate, "first_loss": 1.0, "loss": value, "steps": size.steps}


class Planted:
    """An engine without trainings: rows of a planted law, on a clock of its own.

    calls: sizes in their order. trained: the size of each training. course: of the page.
    """

    def __init__(self, monkeypatch, fails=lambda calls: None, design=largest):
        self.now, self.calls, self.trained, self._fails = 0.0, [], [], fails
        monkeypatch.setattr(fit, "design", design)
        monkeypatch.setattr(search, "clock", lambda: self.now)
        monkeypatch.setattr(search, "train", self.train)
        monkeypatch.setattr(Seconds, "measure", self.measure)
        monkeypatch.setattr(Seconds, "training", lambda seconds, size: seconds_of(size))
        monkeypatch.setattr(search.page, "write_report", self.write)

    def write(self, *arguments, course):
        self.course = course

    @staticmethod
    def measure(seconds, trials):
        point = trials[0].point
        shape = f"width {point.width} depth {point.depth} batch size {point.batch_size}"
        seconds.measured[shape] = Timing(1.0, 1.0, 0.0)

    def train(self, study, workdir, *, chosen, **options):
        with contextlib.closing(Store(workdir, study.identity, ())) as store:
            for trial in chosen:
                size = trial.point.size
                if trial is chosen[0]:
                    self.calls.append(size)
                    self._fails(self.calls)
                self.now += seconds_of(size)
                self.trained.append(size)
                store.add([Finished(row_of(trial, study.searched))])


def tune(m, workdir=None, **options):
    options = {"steps": STEPS, "target": TARGET, "learning_rate": 2.0**-6, "progress": False, **options}
    return m.tune(loss, options.pop("batches", batches), workdir=workdir, **options)


def log(workdir):
    return [json.loads(line) for line in (workdir / CHOICES).read_text().splitlines()]


def rows(workdir):
    table = load(workdir)
    return table.sort_values("key", ignore_index=True)[["key", "last_loss"]]


def test_it_finds_the_rate_of_a_planted_law_and_says_what_it_spent(m, monkeypatch, tmp_path, capsys):
    planted = Planted(monkeypatch, design=fit.design)
    result = tune(m, tmp_path, budget="2min", tolerance=1e-4, progress=True)
    truth = best(Size(**{"width": WIDTH, "depth": DEPTH, "batch_size": 16, **TARGET}))
    assert abs(math.log2(result.prediction.learning_rate) - truth) < 0.75
    assert result.prediction.low < 2**truth < result.prediction.high
    assert result.law.axes == ("width", "depth", "steps", "batch_size")
    lines = str(result).splitlines()
    assert lines[:4] == str(result.prediction).splitlines()
    assert lines[4].startswith("spent ")
    shown = large_run.block(result.rows, result.study, result.curves)  # in the report
    assert shown.prediction == result.prediction
    course, p = planted.course, result.prediction
    assert course.answers[-1] == (p.learning_rate, p.low, p.high, p.cost, p.worst_cost)
    assert list(course.spent) == sorted(set(course.spent))
    assert course.trained == collections.Counter(planted.trained)
    assert sum(int(row["trainings"]) for row in course.table()) == len(result.rows)
    stages = capsys.readouterr().out.splitlines()
    assert stages[0].startswith("start: no law yet; next 5 trainings (5 at width 8 depth 1 batch size 16 steps 20)")
    assert "(97.5%); next " in stages[2]
    entries = log(tmp_path)
    trained = [entry for entry in entries if entry["trials"]]
    for entry in trained[3:]:  # a stage takes at most as long as all before it
        assert entry["seconds"] <= max(entry["spent"], 1.28) + 1e-9
    assert entries[-1]["spent"] <= 120 * search.LATE


def test_the_report_has_the_answer_first(m, monkeypatch, tmp_path):
    """Also where no size has enough rates for a verdict."""
    write, planted = search.page.write_report, Planted(monkeypatch)
    result = tune(m, tmp_path, tolerance=10.0)
    html = write([], result.rows, result.study, tmp_path, "m.tune", course=planted.course).read_text()
    assert html.index("<h1>Which learning rate does the large run want?") < html.index("Target: width 64")
    assert html.index("Target: width 64") < html.index("Next: train the target\n  m.at(64, 1).optimizer(")
    assert "no transfer to judge" not in html
    assert (tmp_path / "search.png").exists()


def stop_at(number, calls, by=signal.SIGTERM):
    if len(calls) == number:
        raise Stopped(by, "here")


def test_a_tune_that_was_killed_goes_on_with_the_same_choices(m, monkeypatch, tmp_path):
    options = {"budget": 110, "tolerance": 1e-4}
    Planted(monkeypatch)
    tune(m, tmp_path / "whole", **options)
    for number in (5, 2):  # in the middle of a stage, and where the next one is chosen and not trained
        Planted(monkeypatch, functools.partial(stop_at, number))
        with pytest.raises(Stopped):
            tune(m, tmp_path / "killed", **options)
    Planted(monkeypatch)
    result = tune(m, tmp_path / "killed", **options)
    pairs = zip(log(tmp_path / "killed"), log(tmp_path / "whole"), strict=True)
    for one, other in pairs:
        assert one["trials"] == other["trials"]
        assert one["spent"] == pytest.approx(other["spent"])
    assert rows(tmp_path / "killed").equals(rows(tmp_path / "whole"))
    more = tune(m, tmp_path / "killed", **{**options, "budget": 150})
    assert set(more.rows["key"]) > set(result.rows["key"])


def test_ctrl_c_ends_it_with_the_answer_as_it_stands(m, monkeypatch, tmp_path):
    options = {"budget": 110, "tolerance": 1e-4}
    Planted(monkeypatch, functools.partial(stop_at, 1, by=signal.SIGINT))
    with pytest.raises(Stopped):  # no answer yet
        tune(m, tmp_path, **options)
    Planted(monkeypatch, functools.partial(stop_at, 5, by=signal.SIGINT))
    result = tune(m, tmp_path, **options)
    assert result.prediction == large_run.sweep_law(result.rows, result.study).at(width=64, steps=200)
    assert "stopped by SIGINT here" in str(result)
    Planted(monkeypatch)
    assert len(tune(m, tmp_path, **options).rows) > len(result.rows)


def test_a_size_that_does_not_fit_is_left_out(m, monkeypatch, tmp_path, capsys):
    def fails(calls):
        if calls[-1].width > 8:
            raise OutOfMemory("no memory")

    planted = Planted(monkeypatch, fails)
    result = tune(m, tmp_path, budget=100, tolerance=1e-4, progress=True)
    assert result.rows["width"].max() == 8
    assert sum(size.width > 8 for size in planted.calls) == 1
    assert "width 16 depth 1 batch size 16 steps 20 does not fit into memory" in capsys.readouterr().out


class OnWorkers:
    """Stands for `Runner` and `timing_of` in the workers of an executor. at_once: the most sizes that ran at one time.

    largest: width that fits into memory. when: a larger one fails.
    """

    def __init__(self, monkeypatch, largest, when):
        self._largest, self._when, self.now, self.at_once, self._running = largest, when, 0.0, 0, list[Size]()
        monkeypatch.setattr(search, "clock", lambda: self.now)
        monkeypatch.setattr(Seconds, "training", lambda seconds, size: seconds_of(size))
        monkeypatch.setattr(remote, "_alone", contextlib.nullcontext())  # of one worker, and threads stand for several
        monkeypatch.setattr(remote, "timing_of", self.timing)
        monkeypatch.setattr(group.Runner, "train_in_memory", self.train)

    def allocate(self, of, when):
        if when == self._when and of.trials[0].point.width > self._largest:
            raise OutOfMemory("no memory")

    def timing(self, of, runner):
        self.allocate(of, "timed")
        return Timing(float(of.trials[0].point.size.compute), 1e-3, 0.0)

    def train(self, of):
        self.allocate(of, "trained")
        self._running.append(of.trials[0].point.size)
        self.at_once = max(self.at_once, len(set(self._running)))
        time.sleep(0.05)
        self._running.remove(of.trials[0].point.size)
        self.now += sum(seconds_of(trial.point.size) for trial in of.trials) / 3
        return [Finished(row_of(trial, of.study.searched)) for trial in of.trials]


DECAYS = {"hyperparameter": "weight_decay", "weight_decay": 0.1}


@pytest.mark.parametrize(("when", "of"), [("timed", {}), ("trained", DECAYS)])
def test_workers_of_an_executor_train_the_sizes_of_a_stage_at_once(when, of, m, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(fit, "design", largest)
    monkeypatch.setattr(search.page, "write_report", lambda *arguments, course: None)
    workers = OnWorkers(monkeypatch, 16, when)
    options = {**of, "budget": 400, "tolerance": 1e-4, "progress": True}
    with ThreadPoolExecutor(3) as executor:
        result = tune(m, tmp_path, executor=executor, **options)
    assert set(result.rows["width"]) == {8, 16}
    assert workers.at_once > 1
    assert len(result.rows) == len(set(result.rows["key"])) > 5
    lines = [line for line in capsys.readouterr().out.splitlines() if "does not fit into memory" in line]
    assert len(lines) == 1
    assert lines[0].startswith("width 32 depth 1 batch size 16 steps 40 does not fit into memory")
    again = tune(m, tmp_path, **options)  # without the executor: what it chose is there
    assert again.rows.equals(result.rows)


def test_a_budget_that_is_too_small_is_said(m, monkeypatch, tmp_path, capsys):
    Planted(monkeypatch)
    with pytest.raises(ValueError, match=r"budget = 1 s is below one training of the smallest size.*takes 1.3 s"):
        tune(m, tmp_path, budget=1)
    tune(m, tmp_path, budget=40, tolerance=1e-4, progress=True)
    assert "the whole budget to " in capsys.readouterr().out
    assert tune(m, tmp_path / "none", budget=3).prediction is None


def test_a_damaged_log_is_refused(m, monkeypatch, tmp_path):
    Planted(monkeypatch)
    tune(m, tmp_path, tolerance=10.0)
    path = tmp_path / CHOICES
    path.write_text(path.read_text() + '{"of": "here"\n')
    with pytest.raises(WorkdirError, match="is damaged"):
        tune(m, tmp_path, tolerance=10.0)


def iterable():
    return [(np.zeros((16, INPUTS), np.float32), np.zeros(16, int))] * 400


WRONG = {
    "below": ({"target": {"width": 4}}, r"the target's width, 4, is below the base's, 8"),
    "below in steps": ({"target": {"width": 64, "steps": 10}}, r"the target's steps, 10, is below the base's, 20"),
    "the base": ({"target": {"width": WIDTH}}, "the target is the base itself"),
    "one size": ({"target": {"width": 16}}, "no size lies between the base"),
    "another hyperparameter": (
        {"hyperparameter": "beta"},
        r"unknown hyperparameter of adamw 'beta' \(known: b1, b2,",
    ),
    "no first guess": ({"hyperparameter": "weight_decay"}, r"give weight_decay=, a first guess .*, got 0.0"),
    "no rate": (
        {"hyperparameter": "eps", "learning_rate": None},
        "hyperparameter='eps' needs learning_rate=: a number",
    ),
    "unknown size": ({"target": {"widht": 64}}, r"unknown size of the target 'widht'; did you mean 'width'"),
    "no sizes": ({"target": 64}, r"target must be dict\(width="),
    "a part of a size": ({"target": {"width": 64.5}}, "width of the target must be a whole number"),
    "budget": ({"budget": "half an hour"}, r'budget must be such as "30min"'),
    "negative budget": ({"budget": -1}, "budget must be positive"),
    "tolerance": ({"tolerance": 0}, "tolerance must be positive"),
    "chosen": ({"widths": (8, 16)}, "leave widths= out"),
    "two optimizers": ({"optimizer": ("adamw", "sgd")}, "one optimizer is tuned"),
    "an axis": ({"weight_decay": (0.0, 0.1)}, "give one weight_decay"),
    "no guess": ({"optimizer": lambda m: m.wrap(None), "learning_rate": None}, "give learning_rate=, a first guess"),
    "batches of one size": ({"target": {"batch_size": 64}}, "a sweep of batch sizes needs batches of each"),
    "an iterable": ({"target": {"batch_size": 64}, "batches": iterable()}, "a sweep of batch sizes needs batches"),
    "no base": ({"batches": lambda step, size: batches(step)}, "give batch_size=, that of the base"),
    "budget alone": ({"target": None, "budget": 60}, "give target="),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_one_line(m, name):
    options, message = WRONG[name]
    with pytest.raises(ValueError, match=message) as error:
        tune(m, **options)
    assert "\n" not in str(error.value)


def test_a_model_that_diverges_at_every_rate(m, monkeypatch, tmp_path):
    Planted(monkeypatch)
    monkeypatch.setattr("tests.test_tune_target.best", lambda size: -30)
    with pytest.raises(ValueError, match="every training diverges at width 8 depth 1"):
        tune(m, tmp_path)


def test_another_hyperparameter_at_the_rates_of_a_tune(m, monkeypatch, tmp_path, capsys):
    write, target = search.page.write_report, Size(**{"width": WIDTH, "depth": DEPTH, "batch_size": 16, **TARGET})
    planted, options = Planted(monkeypatch, design=fit.design), {"budget": "1min", "tolerance": 1e-4}
    rates = tune(m, tmp_path / "rates", **options)
    decays = {"hyperparameter": "weight_decay", "weight_decay": 0.1, "learning_rate": rates, **options}
    result = tune(m, tmp_path / "decays", **decays, progress=True)
    p = result.prediction
    assert p.hyperparameter == planted.course.searched.replace(" ", "_") == "weight_decay"
    assert p.low < 2 ** best_decay(target) < p.high
    assert abs(math.log2(p.learning_rate) - best_decay(target)) < 0.75
    assert "it is the search for the best weight decay there" in capsys.readouterr().out
    law = large_run.sweep_law(rates.rows, rates.study)
    for row in result.rows.to_dict("records"):
        rate = law.at(width=row["width"], steps=row["steps"]).learning_rate
        assert abs(math.log2(row["learning_rate"] / rate)) < 0.01
    at_target = f"{law.at(width=64, steps=200).learning_rate:.2g}"
    assert str(result).splitlines()[-1].startswith(f'm.at(64, 1).optimizer("adamw", {at_target}')
    assert str(result).endswith(f", weight_decay={p.learning_rate:.3g})")
    assert len(tune(m, tmp_path / "decays", **decays).rows) == len(result.rows)
    html = write([], result.rows, result.study, tmp_path, "m.tune", course=planted.course)
    assert "<h1>Which weight decay does the large run want?</h1>" in html.read_text()
    with pytest.raises(ValueError, match="is the result of a tune to"):
        tune(m, **{**decays, "target": {"width": 128}})


def test_an_average_has_a_law_of_what_is_lacking_to_1(m, monkeypatch):
    Planted(monkeypatch, design=fit.design)
    options = {"hyperparameter": "b2", "b2": 0.99, "learning_rate": 0.01, "budget": "1min", "tolerance": 1e-4}
    result = tune(m, **options)
    truth = best(Size(**{"width": WIDTH, "depth": DEPTH, "batch_size": 16, **TARGET}))
    assert result.prediction.low < 2**truth < result.prediction.high
    assert str(result).startswith("1 - b2 0.00")
    assert f"b2={1 - result.prediction.learning_rate:.3g})" in str(result)
    assert set(result.rows["learning_rate"]) == {0.01}


def test_its_rows_are_those_of_a_sweep(m, monkeypatch, tmp_path):
    """Trained by the engine; a sweep in the workdir has nothing left to train, and its rows count for a tune."""
    monkeypatch.setattr(fit, "design", largest)
    monkeypatch.setattr(search.page, "write_report", lambda *arguments, course: None)
    result = tune(m, tmp_path, target={"width": 64}, tolerance=10.0)
    assert set(result.rows["width"]) == {8, 16}
    rates = sorted(result.rows.loc[result.rows["width"] == 8, "learning_rate"])
    files = set((tmp_path / "groups").iterdir())
    monkeypatch.setattr(group.Runner, "train", None)
    study = study_of(m, loss, batches, steps=STEPS, learning_rates=rates, widths=(8,), depths=(), seeds=1)
    swept = train(study, tmp_path, progress=False)
    assert len(swept) == len(rates)
    assert {row["key"] for row in swept} <= set(result.rows["key"])
    again = tune(m, tmp_path, target={"width": 128}, tolerance=10.0)
    assert again.rows.equals(result.rows)
    assert set((tmp_path / "groups").iterdir()) == files
    monkeypatch.undo()
    decays = {"hyperparameter": "weight_decay", "weight_decay": 0.1, "learning_rate": rates[0], "tolerance": 10.0}
    result = tune(m, tmp_path / "decays", target={"width": 64}, **decays)
    options = {"learning_rates": rates, "widths": (8, 16), "depths": (), "seeds": 1}
    study = study_of(m, loss, batches, steps=STEPS, weight_decay=sorted(set(result.rows["weight_decay"])), **options)
    swept = {trial.key for trial in grid_trials(study)}
    assert len(result.rows) == len(set(result.rows["key"]) & swept) > 5


def test_rates_under_a_batch_rule(monkeypatch, tmp_path):
    """The law is of the rates that the steps take, the trainings have those at the base."""
    rule = {"batch_rule": "completed_p", "base_batch": 16, "base_steps": STEPS}
    m = dm.setup("depth_mup", net, batches(0)[0], width=WIDTH, depth=DEPTH, base=(WIDTH, DEPTH), call=call, **rule)
    octaves = []

    def near_the_law(law, candidates, target, **options):
        best_rates = law.rates({axis: candidates[axis] for axis in law.axes}).value
        octaves.extend(np.log2(candidates["learning_rate"] / best_rates))
        return largest(law, candidates, target, **options)

    Planted(monkeypatch, design=near_the_law)
    tune(m, tmp_path, target={"steps": 800}, budget=60, tolerance=1e-4)
    assert np.abs(octaves).max() < search.NEAR + 0.2  # `rates` has random numbers
    assert np.ptp(octaves) > search.NEAR


CONFIG = {
    "model__width": WIDTH, "model__depth": DEPTH, "optimizer__name": "adamw", "optimizer__learning_rate": 2.0**-6,
    "sweep__optimizers": ("adamw",), "sweep__parameterizations": ("depth_mup",), "sweep__depths": (),
    "sweep__log2_learning_rates": {"adamw": (-9.0, -4.0)}, "seed": 3, "epochs": 1.0,
}  # fmt: skip
COMMAND = "main.py tune --config=digits --target=width=64,epochs=10 --budget=2min --workdir=DIR"


def test_a_config(monkeypatch, tmp_path, capsys):
    """From the rows of a sweep of it to the command of the large run."""
    planted, study = Planted(monkeypatch, design=fit.design), tiny.study(**CONFIG)
    planted.train(study, tmp_path, chosen=grid_trials(study))
    flags = {"target": "width=64,epochs=10", "budget": "1min", "tolerance": "0.01%"}
    assert verbs.run_tune(study.settings, tmp_path, COMMAND, **flags) == 0
    assert [Size(*size) for size, _, _ in log(tmp_path)[0]["trials"]] == [
        study.base._replace(steps=2 * study.base.steps)
    ] * 3
    assert load(tmp_path)["seed"].min() == 3
    *_, command, report = capsys.readouterr().out.splitlines()
    assert report == f"report: {tmp_path / 'report.html'}"
    assert command.startswith("main.py train --config=digits --config.model.width=64 ")
    shown = dict(flag.split("=", 1) for flag in command.split()[3:])
    octaves = math.log2(float(shown["--config.optimizer.learning_rate"]))
    assert abs(octaves - best(study.base._replace(width=64, steps=10 * study.base.steps))) < 0.75
    low, high = map(float, shown["--expect"].split(","))
    assert low < high
    assert shown["--config.epochs"] == "10.0"
    settings = put(study.settings, {"optimizer.weight_decay": 0.1})
    flags |= {"hyperparameter": "weight_decay", "tuned": str(tmp_path)}
    assert verbs.run_tune(settings, tmp_path / "decays", COMMAND, **flags) == 0
    at_target = dict(flag.split("=", 1) for flag in capsys.readouterr().out.splitlines()[-2].split()[3:])
    rate = "--config.optimizer.learning_rate"
    assert float(at_target[rate]) == pytest.approx(float(shown[rate]), rel=0.01)
    assert 2**-6 < float(at_target["--config.optimizer.weight_decay"]) < 1


def test_the_points_of_a_config():
    """Those of a sweep have the same keys, and each size has its steps."""
    study = tiny.study(**CONFIG, sweep__epochs=(1.0, 2.0))
    points = {point.size: Trial(point, 1.0, 0).key for point, _ in combinations(study)}
    for size, key in points.items():
        assert Trial(study.point_at(size, "adamw", "depth_mup"), 1.0, 0).key == key
    for size in (study.base._replace(batch_size=48, steps=77), study.base._replace(width=24, depth=3, steps=1)):
        assert study.point_at(size, "adamw", "depth_mup").size == size
    assert study.at_sizes([study.base._replace(steps=2 * study.base.steps)]).sweep.epochs == (1.0, 2.0)


CONFIG_WRONG = {
    "no target": ("", {}, r"tune needs --target=SIZE=N,... of the large run: width, depth, batch_size, epochs"),
    "no size": ("steps=100", {}, r"unknown size of the target 'steps'"),
    "no number": ("width=wide", {}, r"--target is SIZE=N,..., got 'wide'"),
    "below": ("width=4", {}, r"the target's width, 4, is below the base's, 8"),
    "no shape": ("width=64,depth=1.5", {}, "depth of the target must be a whole number"),
    "no end": ("width=inf", {}, "width of the target must be a whole number"),
    "no epochs": ("epochs=nan", {}, "epochs of the target must be positive"),
    "a large batch": ("batch_size=100000", {}, "lower data.batch_size"),
    "an axis": ("width=64", {"sweep__axes": "parameterization.gamma0 = 1, 2"}, "leave sweep.axes out"),
}


@pytest.mark.parametrize("name", CONFIG_WRONG)
def test_bad_input_of_the_command_is_one_line(tmp_path, name):
    target, settings, message = CONFIG_WRONG[name]
    with pytest.raises(ValueError, match=message) as error:
        verbs.run_tune(tiny.settings(**CONFIG | settings), tmp_path, COMMAND, target=target)
    assert "\n" not in str(error.value)

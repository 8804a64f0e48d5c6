"""What a sweep is said to cost, and how many trials it runs together."""

import io
import re
import types

import jax
import numpy as np
import pytest
from rich.console import Console

from configs import default
from depthmup.cli import verbs
from depthmup.data import pipeline
from depthmup.settings import SettingsError, from_config
from depthmup.sweep import cost, train
from depthmup.train import flops
from depthmup.trials import estimate, progress
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.estimate import AT_ONCE, STRETCH, Estimator, at_once, duration, memory
from depthmup.trials.group import LOG_EVERY, Runner, compiled_in
from depthmup.trials.plan import grid_trials, grouped
from depthmup.trials.progress import Progress, about
from depthmup.trials.store import Store
from tests import tiny


def test_cost_is_said():
    text = cost(tiny.config(sweep__optimizers=("sgd",)))
    assert text.startswith("108 trials, 3 programs, ")
    assert "about" in text
    assert "(compilation" in text
    assert cost(tiny.study(sweep__optimizers=("sgd",), sweep__adaptive=True)).endswith("; adaptive: about half of that")


def test_dry_run_writes_nothing(tmp_path, capsys):
    """And finds mistakes."""
    chosen = tiny.study(sweep__optimizers=("sgd",), sweep__depths=(2,), sweep__widths=(), sweep__max_trials=10)
    with pytest.raises(SettingsError, match=r"36 trials, more than sweep.max_trials = 10: .* or give --yes"):
        verbs.run_sweep(chosen, tmp_path / "x", "", dry_run=True, shard="1/2")
    assert verbs.run_sweep(chosen, tmp_path / "x", "", dry_run=True, yes=True, shard="1/2") == 0
    assert capsys.readouterr().out.startswith("18 trials, 1 programs, ")
    assert not (tmp_path / "x").exists()
    with pytest.raises(SettingsError, match="--shard=1 must be i/n"):
        verbs.run_sweep(chosen, None, "", dry_run=True, shard="1")
    with pytest.raises(SettingsError, match="sweep needs --workdir"):
        verbs.run_sweep(chosen, None, "")


@pytest.mark.usefixtures("own_cache")
def test_programs_are_kept(tmp_path):
    """In the folder, from which another process (here: without what is in memory) gets them, wherever it lies then."""
    events, chosen = [], jax.config.jax_compilation_cache_dir
    hear = lambda event, **_: events.append(event.rpartition("/")[2])  # noqa: E731
    jax.config.update("jax_compilation_cache_dir", None)
    jax.monitoring.register_event_listener(hear)
    try:
        for folder, expected in (("first", "cache_misses"), ("second", "cache_hits")):
            events.clear()
            with compiled_in(tmp_path / folder):
                jax.jit(lambda x: jax.numpy.sin(x) * 3.21)(1.0)
            assert [event for event in events if event in ("cache_hits", "cache_misses")] == [expected]
            assert jax.config.jax_compilation_cache_dir is None
            if folder == "first":
                (tmp_path / "first").rename(tmp_path / "second")
                jax.clear_caches()
    finally:
        jax.monitoring.unregister_event_listener(hear)
        jax.config.update("jax_compilation_cache_dir", chosen)


def test_operations(monkeypatch):
    """Those of a step, for all steps and the evaluation (a third of a step's, forwards only), over all trials."""
    chosen = tiny.study(sweep__optimizers=("sgd",), sweep__depths=(2,), sweep__widths=())
    plan = grid_trials(chosen)
    step = flops.of_step(plan[0].point.task, plan[0].hyper, 64)
    groups, estimator = grouped(chosen, plan, lambda program: 20), Estimator()
    estimate = estimator.total(groups)
    assert estimate.flops == pytest.approx(36 * step * (11 + 1797 / (3 * 64)))
    assert estimate.seconds is None
    assert estimator.seconds(groups[0]) / estimator.seconds(groups[1]) == pytest.approx(20 / 16)
    monkeypatch.setattr(pipeline, "TRAIN_EVALUATED", 1000)
    assert estimator.total(groups).flops == pytest.approx(36 * step * (11 + 1360 / (3 * 64)))


def test_minutes_are_those_of_measured_steps():
    """Between the cheapest and the dearest program in proportion to their operations."""
    chosen = tiny.study(
        sweep__optimizers=("sgd",), sweep__depths=(2, 8, 32), sweep__widths=(), sweep__parameterizations=("sp",)
    )
    groups = grouped(chosen, grid_trials(chosen), lambda program: 12)
    estimator = Estimator()
    estimator.measure(groups, Runner())
    times, estimate = [estimator.seconds(group) for group in groups], estimator.total(groups)
    assert 0 < times[0] < times[1] < times[2]
    assert estimate.seconds == pytest.approx(sum(times) + estimate.compiling)


@pytest.mark.parametrize("measured", [True, False])
def test_the_first_group_of_a_program_compiles_it(measured):
    groups = tiny.groups(20, sweep__optimizers=("sgd",))
    estimator = Estimator()
    if measured:
        estimator.measure(groups[:1], Runner())
    estimate = estimator.expected(groups)
    compiling = [estimate[group.name] - estimator.seconds(group) for group in groups]
    once = estimator.total(groups).compiling / 3
    assert (once > 0) == measured == estimator.measured
    assert compiling == pytest.approx([once, 0.0] * 3)
    assert sum(estimate.values()) == pytest.approx(estimator.total(groups).seconds) or not measured


@pytest.mark.parametrize(("seconds", "text"), [(4.4, "4 s"), (200, "3 min 20 s"), (3600 * 5 + 600, "5 h 10 min")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_as_many_at_once_as_fit(monkeypatch):
    study, halves = tiny.study(), tiny.study(parallel__wrapper="jit", parallel__devices_per_trial=2)
    trial = grid_trials(study)[0]
    task, hyper = trial.point.task, trial.hyper
    assert at_once(study, trial) == AT_ONCE
    assert at_once(tiny.study(sweep__at_once=7), trial) == 7
    monkeypatch.setattr(estimate, "AT_ONCE", 10**9)
    monkeypatch.setattr(estimate, "trial_layout", lambda: "vmap")
    monkeypatch.setattr(estimate, "free_memory", lambda device: 1e9 * len(jax.local_devices()))
    for each_study, sets, part in ((study, 8, 64), (halves, 4, 32)):
        assert at_once(each_study, trial) == int(estimate.SHARE * 1e9 // memory(task, hyper, part, "vmap")) * sets
    monkeypatch.undo()
    each = memory(task, hyper, 64, "map")
    state = jax.eval_shape(task.init, hyper.arrays())
    assert each == 3 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    for free, fit in ((2.5 * each, 2), (0.0, 1)):
        statistics = {"bytes_limit": 3 * free * 1.001 / estimate.SHARE, "bytes_in_use": 0}
        device = types.SimpleNamespace(memory_stats=lambda statistics=statistics: statistics)
        monkeypatch.setattr(jax, "local_devices", lambda device=device: [device] * 3)
        assert at_once(study, trial) == max(1, 3 * fit * bool(free))


def test_out_of_memory_says_what_to_set(monkeypatch):
    group = tiny.groups(6)[0]

    def full(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")

    monkeypatch.setattr("depthmup.train.loop.TrialLoop.start", full)
    with pytest.raises(SettingsError, match=r"sgd sp width 8 depth 2: out of memory; set sweep\.at_once below 6"):
        Runner().train(group)


def test_what_a_mapped_step_works_with_is_measured():
    """It grows with the batch; the state does not."""
    bytes_of = {}
    for batch_size in (64, 256):
        trial = grid_trials(tiny.study(data__batch_size=batch_size))[0]
        of_layout = [memory(trial.point.task, trial.hyper, batch_size, layout) for layout in ("vmap", "map")]
        bytes_of[batch_size] = of_layout[0] - of_layout[1]
    activations = np.dtype(np.float32).itemsize * 8 * (256 - 64)  # one layer's, at width 8
    assert bytes_of[256] - bytes_of[64] > activations
    assert bytes_of[64] > 0


def test_dear_trials_run_a_few_at_a_time(monkeypatch):
    """On a CPU: between two reports nobody can stop a sweep, so that a stretch has a bounded number of operations."""
    config = default.get_config("cnn")
    config.model.width, config.sweep.depths, config.sweep.widths = 8, (2,), ()
    study = ConfigStudy(from_config(config))
    trial = grid_trials(study)[0]
    step = flops.of_step(trial.point.task, trial.hyper, trial.point.feed.batch_size)
    for count in (1, 3):
        monkeypatch.setattr(estimate, "STRETCH", (count + 0.5) * LOG_EVERY * step)
        assert at_once(study, trial) == 8 * count
    monkeypatch.setattr(estimate, "STRETCH", 0.1 * step)
    assert at_once(study, trial) == 8
    assert STRETCH > 0.1 * step


@pytest.fixture
def now(monkeypatch):
    """[seconds] that the progress takes for the time."""
    planted = [100.0]
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: planted[0]))
    return planted


def shown(now, groups, measured=True):
    """[(share of the true time that is over, seconds shown, true seconds left)] of groups trained one after another.

    groups: (expected, true) seconds of each. A report comes at each quarter of a group.
    """
    left, whole, start = Progress(silent=True), sum(true for _, true in groups), now[0]
    left.expect({str(i): expected for i, (expected, _) in enumerate(groups)}, measured)
    looks = []
    for i, (_, true) in enumerate(groups):
        for quarter in range(5):
            now[0] += true / 4 if quarter else 0.0
            left.running(str(i), "a group", quarter / 4)
            over = now[0] - start
            looks.append((over / whole, left.seconds(), whole - over))
    assert left.seconds() == pytest.approx(0.0)
    return looks


def error(looks, after, until=0.9):
    """The largest error of what is shown, relative to what is left, between two shares of the true time."""
    return max(abs(seconds / true - 1) for over, seconds, true in looks if after <= over <= until)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_time_left_on_a_machine_of_another_speed(now, factor):
    """At first it is the estimate; then what was measured counts."""
    looks = shown(now, [(seconds, factor * seconds) for seconds in [16.0, 4.0, 4.0, 4.0, 4.0] * 4])
    assert looks[0][1] == pytest.approx(looks[0][2] / factor)
    assert error(looks, 0.25) < 0.2
    assert error(looks, 0.6) < 0.12


def test_little_evidence_counts_little(now):
    """The first group of a hundred takes a tenth of its time, as if all of its trials diverged."""
    looks = shown(now, [(1.0, 0.1)] + [(1.0, 1.0)] * 99)
    assert error(looks, 0.0) < 0.2
    assert error(looks, 0.5) < 0.03


def test_time_left_of_groups_of_very_different_work(now):
    """Large and small ones in turn; a third of the work of each was not done, because trials diverged."""
    sizes = [(3.0, 30.0)[i % 2] for i in range(20)]
    looks = shown(now, [(size, size * 2 / 3) for size in sizes])
    assert error(looks, 0.25) < 0.1
    assert error(looks, 0.5) < 0.05


def test_time_left_where_nothing_was_measured(now):
    """It is extrapolated once a tenth of the sweep is done."""
    looks = shown(now, [(1e-7 * size, size) for size in (0.5, 2.0, 8.0, 32.0) for _ in range(5)], measured=False)
    assert 0.09 < max(over for over, seconds, _ in looks if seconds is None) < 0.1
    assert error([seen for seen in looks if seen[1] is not None], 0.0) < 0.01


def test_time_left_goes_down_between_two_reports(now):
    left = Progress(silent=True)
    left.expect({"a": 30.0, "b": 10.0, "c": 10.0}, measured=True)
    left.running("a", "a group", 0.0)
    for passed, seconds in ((0.0, 50.0), (10.0, 40.0), (90.0, 0.0)):
        now[0] = 100.0 + passed
        assert left.seconds() == pytest.approx(seconds)


def test_time_left_with_another_process(now):
    """It trains a group in the time in which this one does, so that each has half to do."""
    left, looks = Progress(silent=True), []
    groups = [str(i) for i in range(40)]
    left.expect(dict.fromkeys(groups, 10.0), measured=True)
    while groups:
        current, _, *groups = groups
        left.running(current, "a group", 0.0)
        now[0] += 10.0
        left.running(current, "a group", 1.0)
        left.only(set(groups))
        looks.append((1 - len(groups) / 40, left.seconds(), 10.0 * len(groups) / 2))
        assert left.waiting() == len(groups)
    assert error(looks, 0.25) < 0.2
    assert error(looks, 0.6) < 0.1
    assert left.share == 1.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "10 s"), (38, "40 s"), (57, "1 min"), (247, "4 min"), (1135, "19 min"), (2500, "40 min"), (3550, "1 h"),
     (4900, "1 h 20 min"), (45000, "12 h")],
)  # fmt: skip
def test_rough_times(seconds, text):
    assert about(seconds) == f"about {text}"


def small():
    """Three groups of one program."""
    only = {"sweep__optimizers": ("sgd",), "sweep__depths": (2,), "sweep__widths": (), "sweep__at_once": 4}
    return tiny.study(sweep__parameterizations=("sp",), **only)


def test_a_sweep_ends_with_what_it_trained(tmp_path, capsys):
    """Nothing if it trained nothing."""
    train(small(), tmp_path)
    assert re.fullmatch(r"trained 12 trials in \d+ s", capsys.readouterr().out.split("\n")[-2])
    train(small(), tmp_path)
    assert "trained" not in capsys.readouterr().out


def test_a_sweep_hears_of_what_others_trained(tmp_path, monkeypatch, capsys):
    """While it trains its first group another process trains the second. A silent one says nothing at its end."""
    study, left = small(), []
    groups, train_group = grouped(study, grid_trials(study), lambda program: 4), Runner.train
    only = Progress.only

    def trained(runner, group, *rest):
        if len(left) == 1:
            other = Store(tmp_path, study.identity)
            other.add(train_group(Runner(), groups[1]))
            other.close()
        return train_group(runner, group, *rest)

    def heard(self, names):
        left.append(len(names))
        only(self, names)

    monkeypatch.setattr(Runner, "train", trained)
    monkeypatch.setattr(Progress, "only", heard)
    assert len(train(study, tmp_path, progress=False)) == 12
    assert left == [3, 1]
    assert capsys.readouterr().out == ""


def test_progress(now):
    """Groups, trials a minute, time left."""
    out = Console(file=io.StringIO(), width=120)
    with Progress(console=out) as shown:
        shown.expect({"a": 100.0, "b": 300.0}, measured=False)
        start = "groups: 0 done, 0 running, 2 to go; 0 trials, 0 a minute; time left not known yet"
        assert shown.line() == start
        shown.running("a", "sgd mup width 8 depth 2", 0.0)
        now[0] += 8.0
        shown.finished("a", 3)
        shown.running("b", "sgd mup width 8 depth 4", 0.0)
        now[0] += 12.0
        shown.running("b", "sgd mup width 8 depth 4", 0.5)
        assert shown.line() == "groups: 1 done, 1 running, 0 to go; 3 trials, 9 a minute; about 10 s left"
        out.print(shown.table())
        now[0] += 1.0
        shown.finished("b", 0)
        assert shown.line().endswith("; nothing left")
    text = out.file.getvalue()
    assert "sgd mup width 8 depth 4 50%" in text
    assert text.endswith("trained 3 trials in 21 s\n")
    unheard = Console(file=io.StringIO(), quiet=True)
    Progress(silent=True, console=unheard).say("nothing")
    assert unheard.file.getvalue() == ""


def test_the_time_left_of_a_plan_that_grows():
    """An adaptive sweep plans its next trainings by the results of those before."""
    shown = Progress(silent=True, goes_on=True)
    shown.expect({"a": 90.0}, measured=True)
    assert shown.line().endswith("; about 2 min left of what is planned so far")
    shown.finished("a", 3)
    assert shown.line().endswith("; nothing left of what is planned so far")


def test_texts_are_no_markup():
    """Names of folders and of axes' values are printed as they are."""
    name = "run [red] a[/b]c :smile: [/]"
    out = Console(file=io.StringIO(), width=200)
    with Progress(console=out) as shown:
        shown.expect({"a": 1.0}, measured=True)
        shown.running("a", name, 0.0)
        shown.say(f"{name} cannot be read")
        out.print(shown.table())
    assert out.file.getvalue().count(name) == 2

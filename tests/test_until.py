"""A sweep until its verdicts are decided: trials follow where they are needed, and by settings and rows alone."""

import json
import math
import signal

import numpy as np
import pandas
import pytest

from depthmup import fit, sweep
from depthmup.fit import Need
from depthmup.report.curves import finished, judge
from depthmup.settings import SettingsError, column
from depthmup.train.stop import Stopped
from depthmup.train.workdir import read_settings
from depthmup.trials.adaptive import PARTS, Lattice, Search
from depthmup.trials.config_study import config_study_from
from depthmup.trials.engine import train
from depthmup.trials.group import Runner
from depthmup.trials.plan import grid_trials
from depthmup.trials.store import Finished, Store
from depthmup.trials.until import decide, most, needed
from depthmup.trials.verdicts import looks, seed_stages, variants
from tests import tiny

STAGES = [3, 6, 12]


def study(**overrides):
    grid = {"sweep__log2_learning_rates": {"sgd": (-8.0, 2.0)}, "sweep__per_octave": 2, "sweep__optimizers": ("sgd",)}
    shape = {"sweep__depths": (2, 4, 8), "sweep__widths": (), "sweep__seeds": 3}
    until = {"sweep__until": "decided", "sweep__max_seeds": 12, "sweep__parameterizations": ("sp", "depth_mup")}
    return tiny.study(**{**grid, **shape, **until, **overrides})


def planted(trial, optimum=lambda point: -3.0, noise=0.1, cliff=math.inf):
    """A row: a bowl in log learning rate, with noise that is the trial's own; it diverges above the cliff."""
    rng = np.random.default_rng(int(trial.key, 16))
    x = math.log2(trial.learning_rate) - optimum(trial.point)
    loss = 0.05 * math.exp(0.1 * x * x + noise * rng.normal()) if x < cliff else None
    return {**{column(key): v for key, v in trial.leaves.items()}, "key": trial.key, "loss": loss,
            "diverged": loss is None}  # fmt: skip


def drifts(point):
    """sp moves about as far as the margin, so that no number of seeds decides; depth_mup stays."""
    return -3.0 - 0.5 * math.log2(point.depth / 2) * (point.parameterization == "sp")


def rounds(chosen, row_of, plan=()):
    """(what is decided at the end, all rows, the numbers of trials that each round added)."""
    plan, added = plan or grid_trials(chosen), []
    rows = {trial.key: row_of(trial) for trial in plan}
    while (decision := decide(plan, rows, chosen)).more:
        assert not {trial.key for trial in decision.more} & rows.keys()
        rows |= {trial.key: row_of(trial) for trial in decision.more}
        added.append(len(decision.more))
    return decision, rows, added


def keys(plan):
    return [trial.key for trial in plan]


def seeds_of(plan):
    """{(parameterization, depth): {log2 learning rate: number of seeds}}."""
    counts = {}
    for trial in plan:
        of_rate = counts.setdefault((trial.point.parameterization, trial.point.depth), {})
        rate = round(math.log2(trial.learning_rate), 4)
        of_rate[rate] = of_rate.get(rate, 0) + 1
    return counts


def test_a_decided_sweep_adds_nothing():
    chosen = study()
    decision, _, added = rounds(chosen, lambda trial: planted(trial, noise=0.01))
    assert (keys(decision.asked), decision.undecided, added) == (keys(grid_trials(chosen)), [], [])
    assert decide(grid_trials(chosen), {t.key: planted(t, drifts) for t in grid_trials(chosen)}, chosen).undecided


def test_the_margin_decides():
    """What a value may cost is a setting of the sweep: with 90% of the loss no verdict is open."""
    rows = {t.key: planted(t, drifts) for t in grid_trials(study())}
    verdicts = [
        len(decide(grid_trials(study()), rows, study(sweep__margin=margin)).undecided) for margin in ("1 octave", "90%")
    ]
    assert verdicts == [1, 0]


def test_seeds_follow_where_a_verdict_needs_them():
    """By stages, around the rates in question, at the size in question and the smallest; not where all is decided."""
    chosen = study()
    decision, _, added = rounds(chosen, lambda trial: planted(trial, drifts))
    assert [str(verdict) for verdict in decision.undecided] == ["sgd sp depth"]
    assert len(added) == 3
    assert decision.spent == "sweep.max_seeds = 12 is reached"
    counts = seeds_of(decision.asked)
    assert {n for size in (2, 4, 8) for n in counts["depth_mup", size].values()} == {3}
    assert {counts["sp", 2][rate] for rate in (-4.5, -3.0, -1.0)} == {12}
    assert {counts["sp", 8][rate] for rate in (-6.5, -5.0, -3.0, -1.0)} == {12}
    assert {counts["sp", size][rate] for size in (2, 4, 8) for rate in (-8.0, 2.0)} == {3}
    assert {t.seed for t in decision.asked} == set(range(12))


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_interrupted_anywhere_it_asks_for_the_same(seed, adaptive):
    """Also where rows come in another order, and where rows are there that it did not ask for."""
    options = dict(sweep__adaptive=adaptive, sweep__parameterizations=("sp",))
    chosen = study(**options)
    order = np.random.default_rng(seed)

    def row_of(trial):
        return planted(trial, drifts, cliff=1.25)

    def plan(rows):
        search = Search(chosen)
        while adaptive and (more := search.next_trials(rows)):
            rows |= {trial.key: row_of(trial) for trial in more}
        return search.evaluated(rows) if adaptive else grid_trials(chosen)

    whole, _, added = rounds(chosen, row_of, plan({}))
    assert len(added) > 1
    others = grid_trials(study(**options, sweep__seeds=12))
    rows = {others[i].key: row_of(others[i]) for i in order.permutation(len(others))[: 100 * seed]}
    first = plan(rows)
    rows |= {trial.key: row_of(trial) for trial in first}
    while more := decide(first, rows, chosen).more:
        for i in order.permutation(len(more))[: order.integers(len(more) // 2, len(more) + 1)]:
            rows[more[i].key] = row_of(more[i])
    decision = decide(first, rows, chosen)
    assert keys(decision.asked) == keys(whole.asked)
    assert decision.spent == whole.spent


def test_a_grid_becomes_finer_and_wider():
    """Where a cliff or the end of the grid decides; twice as fine twice, and WIDER octaves beyond it at most."""
    chosen = study(sweep__parameterizations=("sp",))
    decision, _, _ = rounds(
        chosen, lambda t: planted(t, lambda point: -3.0 - 0.3 * math.log2(point.depth / 2), cliff=0.5)
    )
    rates = {rate for of_rate in seeds_of(decision.asked).values() for rate in of_rate}
    assert any(4 * rate % 2 for rate in rates)
    assert not any(8 * rate % 1 for rate in rates)
    decision, _, _ = rounds(
        chosen, lambda t: planted(t, lambda point: -7.0 - 0.3 * math.log2(point.depth / 2), noise=0.01)
    )
    lowest = {size: min(of_rate) for (_, size), of_rate in seeds_of(decision.asked).items()}
    assert lowest == {2: -8.0, 4: -8.0, 8: -10.0}


@pytest.fixture(scope="module")
def result():
    chosen = study(sweep__parameterizations=("sp",))
    return fit.transfer([planted(trial) for trial in grid_trials(chosen)])


def asked(result, seeds, *needs, lattice=True):
    """What needs ask for: {(depth, log2 learning rate): number of seeds}."""
    grid = Lattice(tuple(2.0 ** (n / 2) for n in range(-16, 5)), -8.0, 2)
    counts = {depth: {rate: seeds.get(depth, 3) for rate in grid.rates} for depth in (2, 4, 8)}
    numbers = needed(result._replace(needs=list(needs), tuned=2**-3.0), counts, STAGES, grid if lattice else None)
    return {(depth, round(math.log2(rate), 4)): number for (depth, rate), number in numbers.items()}


def test_needs(result):
    seeds, more = Need(8, "seeds", 2**-4.0, 2**-3.0, 50), np.arange(-6, -0.9, 0.5)
    around = {(2, rate): 6 for rate in np.arange(-5, -0.9, 0.5)}
    assert asked(result, {}, seeds) == {(8, rate): 6 for rate in more} | around
    assert asked(result, {2: 6, 8: 6}, seeds) == {(8, rate): 12 for rate in more} | dict.fromkeys(around, 12)
    assert asked(result, {2: 12, 8: 6}, seeds) == {(8, rate): 12 for rate in more}
    assert asked(result, {2: 12, 8: 12}, seeds) == {}
    finer = Need(8, "finer", 2**-2.0, 2**-1.5, 6)
    assert asked(result, {}, finer) == {(8, -1.75): 6}
    assert asked(result, {}, finer._replace(high=2**-1.75)) == {(8, -1.875): 6}
    again = asked(result, {}, finer._replace(high=2**-1.875))  # not finer: then seeds
    assert again == asked(result, {}, finer._replace(high=2**-1.875), lattice=False)
    assert again == {(8, rate): 6 for rate in np.arange(-4, 0.1, 0.5)} | around
    lower, higher = Need(4, "lower", 2**-10.0, 2**-8.0, 3), Need(4, "higher", 2**2.0, 2**4.0, 3)
    assert asked(result, {}, lower) == {(4, rate): 3 for rate in (-10.0, -9.5, -9.0, -8.5)}
    assert asked(result, {}, higher) == {(4, rate): 3 for rate in (2.5, 3.0, 3.5, 4.0)}
    assert asked(result, {}, higher._replace(low=2**5.0, high=2**7.0)) == {(4, 5.5): 3, (4, 6.0): 3}
    assert asked(result, {}, lower, lattice=False) == {}
    both = asked(result, {2: 6}, seeds, seeds._replace(size=4), lower)
    assert (both[8, -3.0], both[4, -3.0], both[4, -9.0], (2, -3.0) in both) == (6, 6, 3, False)


def test_new_rates_are_those_of_the_plan_where_it_has_them():
    """Else a wider grid would train them twice, with another last digit."""
    rates = tuple(np.exp2(np.linspace(-4.3, 2.7, 22)).tolist())
    lattice = Lattice(rates, -4.3, 3)
    assert [lattice.rate(PARTS * n) for n in range(22)] == list(rates)
    assert [lattice.number(lattice.rate(n)) for n in range(-48, 150)] == list(range(-48, 150))


def test_a_bound_on_what_is_added():
    """By sweep.max_trials and by the number of looks; and `most` is one."""
    chosen = study(sweep__max_trials=100)
    decision, _, added = rounds(chosen, lambda trial: planted(trial, drifts))
    assert sum(added) <= 100
    assert decision.spent == "sweep.max_trials = 100 would be passed"
    assert most(chosen) == 100
    chosen = study()
    assert sum(rounds(chosen, lambda trial: planted(trial, drifts))[2]) <= most(chosen)
    assert 3 * len(grid_trials(chosen)) < most(chosen) < 10 * len(grid_trials(chosen))
    assert most(study(sweep__until="planned")) == 0


def test_no_more_looks_than_the_level_is_corrected_for(monkeypatch):
    chosen = study()
    monkeypatch.setattr("depthmup.trials.until.looks", lambda study: 2)
    decision, _, added = rounds(chosen, lambda trial: planted(trial, drifts))
    assert len(added) == 1
    assert decision.spent == "it has looked 2 times, as often as it may"


def test_verdicts_are_corrected_for_all_looks():
    """Also those of the report, whatever was asked for."""
    chosen = study()
    assert (seed_stages(chosen), looks(chosen)) == (STAGES, 5)
    assert looks(study(sweep__until="planned")) == 1
    rows = [planted(trial, drifts) for trial in grid_trials(chosen)]
    sp_rows = [row for row in rows if row["parameterization"] == "sp"]
    results = [judge(pandas.DataFrame(rows), s)[0].result for s in (chosen, study(sweep__until="planned"))]
    expected = [fit.transfer(sp_rows, cap=math.log(10), looks=looks) for looks in (5, 1)]
    assert [str(f) for f in results] == [str(f) for f in expected]
    assert results[0].cost.high > results[1].cost.high


def test_another_hyperparameter_gets_seeds():
    """And keeps its values, as a sweep does whose learning rates are an axis of their own."""
    axes = "optimizer.learning_rate = 0.125; parameterization.gamma0 = log(0.125, 8, 13)"
    chosen = study(sweep__axes=axes, sweep__parameterizations=("depth_mup",))

    def optimum(point):  # the only learning rate is the best one at gamma0 = (depth / 2)^-1/2
        return -3.0 - math.log2(point.leaves["parameterization.gamma0"]) - 0.5 * math.log2(point.depth / 2)

    decision, _, added = rounds(chosen, lambda trial: planted(trial, optimum))
    gamma0 = {t.point.leaves["parameterization.gamma0"] for t in grid_trials(chosen)}
    assert added
    assert {t.point.leaves["parameterization.gamma0"] for t in decision.asked} == gamma0
    assert str(decision.undecided[0]) == "sgd depth_mup gamma0 depth"


def test_a_running_report_has_the_last_verdicts():
    chosen, plan = study(), grid_trials(study())
    _, rows, added = rounds(chosen, lambda trial: planted(trial, drifts))
    assert [len(finished(dict(list(rows.items())[:n]), chosen)[0]) for n in (len(plan), len(plan) + 1)] == [
        len(plan),
        len(plan),
    ]
    table, judged_study = finished(dict(list(rows.items())[: len(plan) + added[0] + 1]), chosen)
    assert (len(table), judged_study) == (len(plan) + added[0], chosen)
    shallow = {key: row for key, row in rows.items() if row["depth"] < 8 and row["seed"] < 3}
    assert finished(shallow, chosen)[1].sweep.depths == (2, 4)


def test_what_a_workdir_keeps():
    for swept in (study(sweep__until="planned"), study()):
        assert config_study_from(json.loads(json.dumps(swept.identity))).sweep == swept.sweep


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"sweep__until": "decide"}, "unknown sweep.until 'decide'; did you mean 'decided'"),
        ({"sweep__max_seeds": 0}, "sweep.max_seeds must be at least 1, got 0"),
        ({"sweep__seeds": 13}, r"needs sweep.seeds from 2 to sweep.max_seeds = 12, got 13"),
        ({"sweep__seeds": 1}, "got 1: one seed decides nothing"),
    ],
)
def test_settings(overrides, message):
    with pytest.raises(SettingsError, match=message):
        study(**overrides)


def trained(**overrides):
    """Settings of a sweep that goes on after its plan: two programs, two stages of seeds."""
    grid = {"sweep__log2_learning_rates": {"sgd": (-5.0, 1.0)}, "sweep__per_octave": 1, "sweep__depths": (2, 4)}
    few = {
        "sweep__parameterizations": ("sp",),
        "sweep__seeds": 2,
        "sweep__max_seeds": 4,
        "sweep__calibrate": False,
        "sweep__at_once": 5,
    }
    return study(**{**grid, **few, **overrides})


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """(rows, report) of such a sweep, left alone."""
    result = sweep.run(trained(), tmp_path_factory.mktemp("alone"), progress=False)
    return result.rows, result.page


def test_trained_as_planted(alone):
    """What follows the plan is what the rule asks for; the report is about it."""
    rows, page = alone
    chosen = trained()
    by_key = {row["key"]: row for row in rows}
    decision = decide(grid_trials(chosen), by_key, chosen)
    assert [row["key"] for row in rows] == keys(decision.asked)
    assert len(rows) > len(grid_trials(chosen))
    assert page.exists()
    table, _ = finished(by_key, chosen)
    assert len(list(variants(table, chosen))) == 1


def test_stopped_anywhere_the_rows_are_the_same(alone, tmp_path, monkeypatch):
    """At every group, also in the rounds after the plan; and a workdir with the plan's rows may go on so."""
    train_group = Runner.train

    def train_one(*arguments):
        signal.raise_signal(signal.SIGINT)
        return train_group(*arguments)

    assert len(train(trained(sweep__until="planned"), tmp_path, progress=False)) == len(grid_trials(trained()))
    monkeypatch.setattr(Runner, "train", train_one)
    stops = 0
    while True:
        try:
            rows = train(trained(), tmp_path, progress=False)
            break
        except Stopped:
            stops += 1
    assert stops > 1
    assert rows == alone[0]


def test_parts_train_the_plan_and_the_whole_goes_on(alone, tmp_path):
    parts = [train(trained(), tmp_path, shard=(i, 2), progress=False) for i in range(2)]
    assert len(parts[1]) == len(grid_trials(trained()))
    assert train(trained(), tmp_path, progress=False) == alone[0]


def test_adaptive(tmp_path):
    """The same again after some of the rows are lost."""
    chosen = trained(sweep__adaptive=True)
    rows = train(chosen, tmp_path, progress=False)
    by_key = {row["key"]: row for row in rows}
    plan = Search(chosen).evaluated(by_key)
    assert len(rows) > len(plan)
    assert keys(decide(plan, by_key, chosen).asked) == list(by_key)
    for path in sorted((tmp_path / "groups").iterdir())[::2]:
        path.unlink()
    assert train(chosen, tmp_path, progress=False) == rows


def test_what_it_says(alone, tmp_path, capsys):
    """Where the plan is there: what is undecided, what follows and how long it takes, and how it ends."""
    rows, page = alone
    chosen, plan = trained(), len(grid_trials(trained()))
    assert f"up to {most(chosen)} more trials until verdicts are decided" in sweep.cost(chosen)
    store = Store(tmp_path, read_settings(page.parent))
    store.add([Finished(row) for row in rows[:plan]])
    store.close()
    assert train(chosen, tmp_path) == rows
    lines = capsys.readouterr().out
    assert f"undecided so far: sgd sp depth; {len(rows) - plan} more trials, about " in lines
    undecided = decide(grid_trials(chosen), {row["key"]: row for row in rows}, chosen).undecided
    assert ("undecided: sgd sp depth; sweep.max_seeds = 4 is reached" in lines) == bool(undecided)

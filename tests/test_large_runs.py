"""The GPTs of real size: order of the trainings, a part that stops and goes on, the table, from made-up rows."""

import itertools
import math
import signal
import time
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from depthmup.train.stop import Stop, Stopped
from experiments import large_runs
from experiments.large_runs import FULL, Scale, Trial, missing, read, table
from tests.test_tokens import nano

TINY = Scale((16, 2), {"deep": (16, 4)}, range(-9, -6), seeds=1, steps=3, batch_size=2, context=8)
BEST = -8
# Octaves from the base's best rate, and the height of the valley.
OPTIMA = {"completep": (0.0, 1.0), "depth_mup": (0.6, 1.0), "mup": (-1.0, 1.02), "sp": (-3.0, 1.1)}


def rows_of(trials, at=None):
    """Made-up rows; at: {trial: loss}."""
    lines = []
    for trial in trials:
        moved, height = OPTIMA[trial.parameterization] if trial.size != FULL.base else (0.0, 1.0)
        loss = height * math.exp(0.02 * (trial.octave - BEST - moved) ** 2)
        loss = (at or {}).get(trial, loss)
        lines.append({**trial._asdict(), "steps": 1, "diverged": math.isnan(loss), "validation_loss": loss})
    return pandas.DataFrame(lines)


def base(*octaves):
    return [Trial("mup", *FULL.base, octave, 0) for octave in octaves]


def test_the_order():
    """The base, its rates extended until the best lies inside; then each jump by all rules, all seeds of one before
    the next. A training that stands for several is made once."""
    everything = missing(read(large_runs.ROWS.with_name("none")), FULL)
    assert everything[:7] == base(*range(-12, -5))
    assert len(everything) == len(set(everything)) == 7 + 39 + 3 + 39
    swept = rows_of(base(*range(-12, -5)))
    falling = swept.assign(validation_loss=-swept["octave"])
    assert missing(falling, FULL)[0] == base(-5)[0]
    falling.loc[falling["octave"] > -9, "validation_loss"] = math.nan  # diverged
    assert missing(falling, FULL)[0] == Trial("completep", 256, 32, -9, 0)
    left = missing(swept, FULL)
    assert left[:3] == [Trial("completep", 256, 32, octave, 0) for octave in (BEST, BEST - 1, BEST + 1)]
    names = {size: list(dict.fromkeys(t.parameterization for t in left if t.size == size)) for size in
             [FULL.base, *FULL.jumps.values()]}  # fmt: skip
    assert names == {
        (256, 4): ["mup"],
        (256, 32): ["completep", "mup", "depth_mup"],
        (1024, 4): ["mup", "sp"],
        (1024, 16): ["completep", "sp", "mup", "depth_mup"],
        (512, 8): ["completep", "sp", "mup", "depth_mup"],
    }
    assert [seed for seed, _ in itertools.groupby(trial.seed for trial in left)] == [0, 1]
    assert missing(pandas.concat([swept, rows_of(left[:5])]), FULL) == left[5:]
    assert missing(pandas.concat([swept, rows_of(left)]), FULL) == []


def cells(text):
    return {tuple(cell.strip(" `") for cell in line.split("|")[1:3]): line.split("|")[3:-1]
            for line in text.splitlines() if line.startswith("| ")}  # fmt: skip


def test_the_table(tmp_path, monkeypatch):
    swept = base(*range(-12, -5))
    trials = [*swept, *missing(rows_of(swept), FULL)]
    diverged = {trial: math.nan for trial in trials if trial[:4] == ("sp", 1024, 16, BEST + 1)}
    kept = {trial: math.nan for trial in trials if trial == Trial("mup", 1024, 4, BEST, 1)}
    rows = rows_of(trials, diverged | kept)
    assert table(rows[:3], FULL) == "The base's sweep is not finished."
    by_row = cells(table(rows, FULL))
    strip = [cell.strip() for cell in by_row["large, 1024 x 16", "completep"]]
    assert strip == ["2", "1.020 1.000 1.020", "+0.0", "0.0%", "carries"]
    strip = [cell.strip() for cell in by_row["large, 1024 x 16", "depth_mup"]]
    assert strip[2:] == ["+0.6", "0.4%", "carries"]
    # Half the rate is better by exp(.02) under mup, and by exp(.1) under sp, whose twice has diverged.
    assert [cell.strip() for cell in by_row["large, 1024 x 16", "mup"]][2:] == ["-1.0", "2.0%", "does not"]
    strip = [cell.strip() for cell in by_row["large, 1024 x 16", "sp"]]
    assert strip[1:] == ["1.192 1.317 diverged", "-", "10.5%", "does not"]
    # One seed of the kept rate diverged; three rules have these trainings.
    for name in ("mup", "depth_mup", "completep"):
        assert [cell.strip() for cell in by_row["wide, 1024 x 4", name]][3:] == ["diverges", "does not"]
    rows.to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setattr(large_runs.read, "__defaults__", (tmp_path / "rows.parquet",))
    assert large_runs.cost("mup deep").value == pytest.approx(100 * math.expm1(0.02))
    assert large_runs.moved("depth_mup deep").value == pytest.approx(0.6)
    assert large_runs.ahead("completep depth_mup large").value == pytest.approx(100 * math.expm1(0.02 * 0.36))


@pytest.mark.parametrize(
    ("cost", "spread", "answer"),
    [(0.9, 0, "carries"), (1.5, 0, "undecided"), (1.5, 1.6, "carries"), (2.1, 0, "does not")],
)
def test_the_rule_of_decision(cost, spread, answer):
    assert large_runs.answer(cost, spread) == answer


def test_the_spread_of_the_base():
    swept = base(*range(-12, -5))
    again = [trial._replace(seed=1) for trial in base(-9, -8, -7)]
    rows = rows_of([*swept, *again], {again[1]: 1.03})
    assert large_runs.spread_of_base(rows, FULL) == pytest.approx(3.0)
    assert large_runs.spread_of_base(rows_of(swept), FULL) == 0.0


def test_a_part_ends_in_time_and_goes_on(tmp_path, monkeypatch):
    """The training that runs at the deadline is asked to save and to stop; what ended before has its row."""
    monkeypatch.setattr(large_runs, "AGAIN", 0.01)
    monkeypatch.setattr(large_runs, "settings_of", lambda trial, scale, data_dir: trial)
    clock = SimpleNamespace(monotonic=lambda: 460.0 if len(begun) == 3 else 0.0)
    monkeypatch.setattr(large_runs, "time", clock)
    begun, saved, outer = [], [], signal.getsignal(signal.SIGTERM)

    def train(trial, workdir, command):
        begun.append(trial)
        if len(begun) == 3:
            time.sleep(0.1)  # asked before this `Stop` is open: asked again
            with Stop() as stop:
                while not stop.requested:
                    time.sleep(0.01)
                saved.append(workdir)
                raise Stopped.at(stop.requested, 5, True)
        (workdir / large_runs.FOLDER).mkdir(parents=True)
        return {"validation_loss": 1.0 + (trial.octave - BEST) ** 2, "diverged": False}

    monkeypatch.setattr(large_runs, "train_network", train)
    rows = tmp_path / "rows.parquet"
    left = large_runs.part(TINY, rows, tmp_path, 8)
    assert len(read(rows)) == 2
    assert begun[-1] == left[0] == Trial("mup", 16, 2, -7, 0)
    assert saved == [tmp_path / "mup-16x2-rate-7-seed0"]
    assert not (tmp_path / "mup-16x2-rate-9-seed0" / large_runs.FOLDER).exists()
    assert large_runs.part(TINY, rows, tmp_path, 8) == []
    assert begun[3] == left[0]
    assert len(read(rows)) == len(set(begun)) == 3 + 9
    assert signal.getsignal(signal.SIGTERM) is outer


def test_one_training(tmp_path):
    """The last one that is missing, of the real thing: bfloat16, tokens, a cosine that ends at a tenth."""
    nano(tmp_path / "d" / "train.bin", np.arange(300) % 50)
    nano(tmp_path / "d" / "val.bin", np.arange(90) % 50)
    rows, data_dir = tmp_path / "rows.parquet", str(tmp_path / "d")
    swept = [Trial("mup", *TINY.base, octave, 0) for octave in TINY.octaves]
    trials = rows_of(swept).assign(validation_loss=[2.0, 1.0, 2.0])
    last = missing(trials, TINY)[-1]
    pandas.concat([trials, rows_of(missing(trials, TINY)[:-1])]).to_parquet(rows)
    settings = large_runs.settings_of(last, TINY, data_dir)
    assert (settings.model.options["heads"], settings.model.options["dtype"]) == (4, "bfloat16")
    assert large_runs.part(TINY, rows, tmp_path / "runs", 3.0, data_dir) == []
    row = read(rows).iloc[-1]
    assert Trial(*row[[*Trial._fields]]) == last == Trial("depth_mup", 16, 4, -7, 0)
    assert (row["steps"], row["diverged"]) == (3, False)
    assert 3.0 < row["validation_loss"] < 5.0  # log 64


def test_the_plan(tmp_path, monkeypatch):
    """A training that is longer than a part is in several."""
    monkeypatch.setattr(large_runs, "settings_of", lambda *of: None)
    monkeypatch.setattr(large_runs, "task_of", lambda of: None)
    monkeypatch.setattr(large_runs, "hyper_of", lambda of: None)
    chip = large_runs.CHIPS[large_runs.CHIP].peak * large_runs.SHARE
    monkeypatch.setattr(large_runs.flops, "of_step", lambda *of: 300 * chip / FULL.steps)
    lines = large_runs.plan(FULL, base(-9, -8, -7), 8).splitlines()
    assert lines[2:-1] == [
        f"part {number}" for number in ("1: 460 s: 2 of 256x4", "2: 460 s: 2 of 256x4", "3: 180 s: 1 of 256x4")
    ]
    assert lines[-1] == "18 minutes in all"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "no GPU is at hand: --smoke runs"), (["--minutes=1"], "--minutes=1: a part takes more than 1.3 minutes")],
)
def test_what_is_refused(arguments, words, capsys, monkeypatch):
    monkeypatch.setattr(large_runs, "prepare_cpu", lambda: None)
    with pytest.raises(SystemExit) as refused:
        large_runs.main(arguments)
    assert refused.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].split("error: ")[-1].startswith(words)

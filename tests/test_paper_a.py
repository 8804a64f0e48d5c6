"""The figures of paper A: what is committed is what the page says, and whoever has the images can go on."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pandas
import pytest

from depthmup.fit import Cost, transfer
from depthmup.fit.drift import Drift
from depthmup.fit.verdict import Need
from depthmup.report.curves import judge
from depthmup.settings import LEARNING_RATE, column, from_config
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.plan import grid_trials
from depthmup.trials.verdicts import DepthLaws, TransferCurve
from experiments import output, published
from experiments.figures import command, figure, page
from experiments.figures.figure import Outcome
from experiments.output import AGREES, DISAGREES, NOT_RUN, UNDECIDED, combined
from experiments.paper_a import FIGURES, PAPER, fig1, fig2, fig3, fig4, figb1, figb3, figm1
from tests import figures, tiny

SWEEPS = PAPER.sweeps
ONE = {"sweep__optimizers": ("sgd",), "sweep__calibrate": False, "epochs": 2.0}


def test_the_page_is_that_of_the_rows():
    sweeps = {paper.name: page.read(paper) for paper in page.PAPERS}
    assert page.PAGE.read_text() == page.text(sweeps)
    for picture in re.findall(r"\]\((images/.*?)\)", page.PAGE.read_text()):
        assert (page.PAGE.parent / picture).exists(), picture


def test_a_row_has_one_number_and_a_figure_its_remarks():
    for line in page.PAGE.read_text().splitlines():
        if line.startswith("| "):
            assert all(len(cell.split()) <= 25 for cell in line.strip("| ").split(" | ")), line
    for paper in page.PAPERS:
        remarks = {path.stem for path in (page.TEXTS / paper.name).glob("*.md")} - {"reading", "elsewhere"}
        assert remarks <= paper.figures.keys()


def test_every_label_is_one_of_a_closed_set():
    """Of the rows of all figures, in the tables of the page as it is."""
    labels = []
    for table in page.PAGE.read_text().split("\n\n"):
        head, *rows = (line.strip("| ").split(" | ") for line in table.strip().splitlines())
        if tuple(head) in (page.FIRST, page.COLUMNS):
            labels += [row[2].replace("**", "").removesuffix(", so far") for row in rows[1:]]
    assert len(labels) == sum(len(paper.figures) + len(page.elsewhere(paper)) for paper in page.PAPERS)
    assert set(labels) <= set(page.LABELS)


def test_every_figure_has_one_row():
    """All figures, tables and appendices of the paper: what has a module, and what has none."""
    named = [one.figure for one in FIGURES.values()] + [row[0] for row in page.elsewhere(PAPER)]
    words = [word.strip() for name in named for word in name.split(",")]
    assert len(words) == len(set(words))
    wanted = "1 2 3a-c 3d 3e-f 4 5 6 7 B.1 B.2 B.3 B.4 B.6 B.7 B.8 M.1"
    assert set(wanted.split()) <= set(words)
    for row in page.elsewhere(PAPER):
        assert len(row) == len(page.COLUMNS)


def test_headers():
    """Claim, command, measure, sizes that count, cost and what to expect at the head of every module."""
    for name in FIGURES:
        text = figures.header(PAPER, {"3rule": "3", "footnote2": "B.1"}.get(name, name))
        for word in ("Claim", "udged", "count", "\nCost: ", "\nExpect: "):
            assert word in text, (name, word)


@pytest.mark.parametrize("name", SWEEPS)
def test_demo_settings(name):
    settings = from_config(SWEEPS[name]())
    assert settings.data.name == "folder"
    assert settings.sweep.seeds >= 3
    assert len(settings.sweep.depths) >= 4
    assert len(grid_trials(ConfigStudy(settings))) <= settings.sweep.max_trials


def curve(name, axis, result):
    trials = pandas.DataFrame(index=range(5))
    return TransferCurve("sgd", name, "", axis, "learning_rate", "loss", trials, result, 2.3, 2.3, DepthLaws())


def verdict(answer):
    """A result with this verdict."""
    rows = [dict(depth=d, learning_rate=2.0**k, seed=s, loss=1 + 0.1 * k * k) for d in (1, 2) for k in range(-3, 4)
            for s in (0, 1)]  # fmt: skip
    result = transfer(rows, cap=2.3)
    return result._replace(verdict=answer, drift=Drift(0.1, -0.2, 0.4, 0.0), cost=Cost(0.018, 0.004, 0.032))


@pytest.mark.parametrize(
    ("answer", "claimed", "agrees"),
    [
        ("transfers", True, AGREES),
        ("transfers", False, DISAGREES),
        ("does not transfer", False, AGREES),
        ("does not transfer", True, DISAGREES),
        ("undecided", True, UNDECIDED),
        ("undecided", False, UNDECIDED),
        ("nothing learned", True, UNDECIDED),
        ("nothing learned", False, UNDECIDED),
    ],
)
def test_verdicts_on_a_claim(answer, claimed, agrees):
    c = curve("mup", "depth", verdict(answer))
    assert figure.says(c, claimed) == ("mup over depth: costs at most 1.8% [0.4, 3.2]", agrees)
    drift = "" if answer == "nothing learned" else "+0.10 [-0.20, +0.40]"
    assert figure.cells(c) == (drift, "1.8% [0.4, 3.2]", answer)


def test_what_would_decide_an_undecided_curve():
    """Two seeds at 2^-3 to 2^3: between .5 and 2 smoothed curves depend on all seven values, at 1 on five of them."""
    needs = [Need(2, "seeds", 0.5, 2.0, 22), Need(2, "finer", 0.1, 0.2, 3), Need(2, "lower", 1 / 32, 1 / 8, 2)]
    c = curve("mup", "depth", verdict("undecided")._replace(needs=needs, tuned=1.0))
    assert figure.lacking(c.result) == {2: 7 * 20 + 3 + 2 * 2, 1: 5 * 20}
    header, _, row = figure.curve_table({"mup": c}).splitlines()
    assert header.endswith("| verdict | would decide |")
    assert row.endswith("| undecided | 247 trainings |")
    for seconds, cost in (36.0, "3.9 h"), (3.0, "20 min"), (360.0, "39 h"):
        timed = dataclasses.replace(c, trials=pandas.DataFrame({"depth": (1, 2), "seconds": (seconds, 2 * seconds)}))
        assert figure.deciding(timed) == f"247 trainings, {cost}"
    many = dataclasses.replace(c, result=c.result._replace(needs=[Need(2, "seeds", 0.5, 2.0, 999)]))
    assert figure.deciding(many) == f">{12 * 997:,} trainings"
    header, _, row = figure.curve_table({"mup": curve("mup", "depth", verdict("transfers"))}).splitlines()
    assert header.endswith("| verdict |")
    assert row.endswith("| transfers |")


def test_the_number_of_a_row_is_that_of_a_part_that_decides():
    parts = [("one", AGREES), ("two", UNDECIDED), ("three", UNDECIDED)]
    assert Outcome.of(parts) == (UNDECIDED, "two", "")
    assert Outcome.of([*parts, ("four", DISAGREES)]).number == "four"


def test_paired_seeds():
    """By hand: t with 2 degrees of freedom is 4.3027."""
    half = 4.3027 * 1.0 / 3**0.5
    assert output.paired(np.array([1.0, 2.0, 3.0])) == pytest.approx((2.0, 2 - half, 2 + half), abs=1e-3)


def test_chance_by_other_measures():
    """Chance of an accuracy is an error."""
    sweep = planted("simple_resnet", lambda row: -3)
    c = figure.curve({"simple_resnet": sweep}, "simple_resnet", "depth_mup")
    chances = [figure.chance(c, measure) for measure in (c.measure, "loss", "validation_accuracy")]
    assert chances == pytest.approx([np.log(10), np.log(10), 0.9])


def test_one_disagreement_disagrees():
    assert combined([AGREES, UNDECIDED, DISAGREES]) == DISAGREES
    assert combined([AGREES, UNDECIDED]) == UNDECIDED
    assert combined([AGREES, AGREES]) == AGREES


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A sweep of digits with the names of figure 1's, its rows published; (settings, folder of the rows)."""
    settings = tiny.settings(**ONE, sweep__depths=(2, 4), sweep__seeds=3)
    rows = tmp_path_factory.mktemp("rows")
    command.trained(rows, "simple_resnet", settings, tmp_path_factory.mktemp("work") / "simple_resnet")
    return settings, rows


def test_figures_from_rows(small):
    """Every number and picture comes from the published rows alone."""
    settings, rows = small
    sweeps = {"simple_resnet": published.read(rows / "simple_resnet", settings)}
    assert fig1.EXPERIMENT.outcome(sweeps).verdict in (AGREES, DISAGREES, UNDECIDED)
    assert set(fig1.EXPERIMENT.pictures(sweeps)) == {"fig1_width", "fig1_depth"}
    assert len(figb3.networks(sweeps)) == 2
    figb3.pictures(sweeps)
    curves = sweeps["simple_resnet"].curves
    c = next(c for c in curves if (c.axis, c.parameterization) == ("depth", "depth_mup"))
    of_depth = fig4.losses_over_time(c)
    for depth, losses in of_depth.items():
        carried = c.carried(depth)
        by_hand = np.mean([np.asarray(curve) for curve in carried["curve"]], axis=0) / published.SCALE
        np.testing.assert_allclose(losses, by_hand)
    two = np.array(list(of_depth.values()))
    assert fig4.spread(c, slice(0, 10)) == pytest.approx((two.max(0) / two.min(0) - 1)[:10].max())
    rates, losses = figb3.over_time(c, 4)
    at, seed = list(rates).index(c.carried(4)["learning_rate"].iloc[0]), 1
    carried = np.asarray(c.carried(4).sort_values("seed")["curve"].iloc[seed]) / published.SCALE
    np.testing.assert_allclose(losses[:, at, seed], carried.reshape(10, 4).mean(axis=1))


def test_unfinished_figures_say_so(small, tmp_path, monkeypatch):
    settings, rows = small
    shutil.copytree(rows, tmp_path / "rows")
    about = json.loads((tmp_path / "rows" / "simple_resnet.json").read_text())
    (tmp_path / "rows" / "simple_resnet.json").write_text(json.dumps(about | {"complete": False}))
    unfinished = published.read(tmp_path / "rows" / "simple_resnet", settings, extended=True)
    monkeypatch.setattr(page, "PAPERS", (PAPER._replace(figures={"1": FIGURES["1"]}),))
    assert "| not run | - |" in page.text({"paper_a": {}})
    text = page.text({"paper_a": {"simple_resnet": unfinished}})
    assert f"| not run | unfinished: {len(unfinished.rows):,} trials so far |" in text
    assert "### Figure 1" not in text


def test_a_figure_has_an_outcome_of_what_it_needs(small, tmp_path, monkeypatch):
    settings, rows = small
    done = published.read(rows / "simple_resnet", settings, extended=True)
    figure_1 = FIGURES["1"]._replace(sweeps={"simple_resnet": None, "more": None})
    for needs, shown in (("simple_resnet",), True), (("more",), False), ((), False):
        monkeypatch.setattr(page, "PAPERS", (PAPER._replace(figures={"1": figure_1._replace(needs=needs)}),))
        text = page.text({"paper_a": {"simple_resnet": done}})
        assert ("### Figure 1" in text) == ("; so far 1 of 2 sweeps |" in text) == ("**, so far |" in text) == shown
        assert ("| not run | - |" in text) != shown


def test_the_command_goes_on_from_committed_rows(small, tmp_path, monkeypatch, capsys):
    """In a fresh clone nothing is trained again, and without --data what is missing is named."""
    settings, rows = small
    shutil.copytree(rows, tmp_path / "rows" / "paper_a")
    paper = PAPER._replace(figures={"1": FIGURES["1"]._replace(sweeps={"simple_resnet": lambda: None})})
    monkeypatch.setattr(page, "PAPERS", (paper,))
    monkeypatch.setattr(command, "settings_of", lambda config, data: settings)
    monkeypatch.setattr(page, "from_config", lambda config: settings)
    monkeypatch.setattr(figure, "RESULTS", tmp_path / "rows")
    monkeypatch.setattr(figure, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(page, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(command, "train", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr("sys.argv", ["paper_a"])
    command.main(paper)
    assert "### Figure 1" in (tmp_path / "results.md").read_text()
    printed = capsys.readouterr().out
    assert "best learning rate at depth" in printed
    assert fig1.EXPERIMENT.outcome(page.read(paper)).number in printed
    assert {path.name for path in (tmp_path / "images" / "paper_a").iterdir()} == {"fig1_width.png", "fig1_depth.png"}
    more = dataclasses.replace(settings, sweep=dataclasses.replace(settings.sweep, seeds=4),
                               data=dataclasses.replace(settings.data, name="folder"))  # fmt: skip
    monkeypatch.setattr(command, "settings_of", lambda config, data: more)
    monkeypatch.setattr(page, "from_config", lambda config: more)
    with pytest.raises(
        ValueError, match=r"computed with other settings .*: data.name was 'digits', now it is 'folder'"
    ):
        command.finished(rows, "simple_resnet", more)
    monkeypatch.setattr(figure, "RESULTS", tmp_path / "none")
    command.main(paper)
    assert "simple_resnet: not finished, and --data=DIR is needed" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["paper_a", "99"])
    with pytest.raises(SystemExit):
        command.main(paper)
    assert "no figure 99; there are 1" in capsys.readouterr().err


def test_more_trainings_follow_a_finished_sweep(small, tmp_path, monkeypatch):
    """The sweep itself is not trained again, its rows stay as they are, and it is finished when `more` is there."""
    settings, rows = small
    shutil.copytree(rows, tmp_path / "rows")
    more = dataclasses.replace(settings, sweep=dataclasses.replace(settings.sweep, seeds=4, depths=(2,), widths=()))
    before, calls = pandas.read_parquet(rows / "simple_resnet.parquet"), []
    monkeypatch.setattr(command, "train", lambda settings, workdir: calls.append((settings, command.Store(workdir,
        ConfigStudy(settings).identity).close())))  # fmt: skip
    assert command.finished(rows, "simple_resnet", settings)
    assert command.finished(rows, "simple_resnet", settings, [settings])
    assert not command.finished(rows, "simple_resnet", settings, [more])
    command.trained(tmp_path / "rows", "simple_resnet", settings, tmp_path / "work", [more])
    assert calls == [(more, None)]
    pandas.testing.assert_frame_equal(before, pandas.read_parquet(tmp_path / "rows" / "simple_resnet.parquet"))
    assert published.read(tmp_path / "rows" / "simple_resnet", settings).curves


def test_a_folder_of_other_classes_is_not_trained(tmp_path, monkeypatch, capsys):
    """A figure of 100 classes is passed over when the folder has 3."""
    for name in ("a", "b", "c"):
        (tmp_path / "data" / "train" / name).mkdir(parents=True)
    paper = PAPER._replace(figures={"1": FIGURES["1"]._replace(classes=100)})
    monkeypatch.setattr(command, "finished", lambda *_: False)
    monkeypatch.setattr(command, "trained", lambda *_: pytest.fail("trained"))
    monkeypatch.setattr(command, "draw", lambda paper: {paper.name: {}})
    monkeypatch.setattr("sys.argv", ["paper_a", f"--data={tmp_path / 'data'}"])
    command.main(paper)
    assert f"it needs a folder of 100 classes, and {tmp_path / 'data' / 'train'} has 3" in capsys.readouterr().out


def planted(name, best, floor=lambda row: 1.0, early=lambda row: 2.0):
    """A figure's sweep with bowls whose optima and minima are known: log2 best rate, loss there, loss on the way."""
    settings = from_config(SWEEPS[name]())
    settings = dataclasses.replace(settings, sweep=dataclasses.replace(settings.sweep, adaptive=False, until="planned"))
    study, rng, rows = ConfigStudy(settings, classes=10), np.random.default_rng(0), []
    names = ["optimizer", "parameterization", "width", "depth", "learning_rate", "seed"]
    followed = [axis.key for axis in study.axes if len(axis.values) > 4 and axis.key != LEARNING_RATE]
    for trial in grid_trials(study):
        row = {column(key): value for key, value in trial.leaves.items()}
        x = row[column(followed[0])] if followed else row["learning_rate"]
        x = 1 - x if followed == ["optimizer.momentum"] else x
        loss = floor(row) * (1 + 0.1 * (np.log2(x) - best(row)) ** 2 + 1e-3 * rng.standard_normal())
        way = np.linspace(early(row), loss, published.STRETCHES)
        kept = {key: row[key] for key in [*names, *(column(axis.key) for axis in study.axes)]}
        losses = dict.fromkeys(("loss", "last_loss", "validation_loss"), loss)
        rows.append({**kept, **losses, "validation_accuracy": 0.5, "diverged": False,
                     "key": trial.key, "steps": 703, "curve": (way * published.SCALE).round().astype(int)})  # fmt: skip
    table = pandas.DataFrame(rows)
    about = {"complete": True, "minutes": 1.0}
    return published.Sweep(table, settings, judge(table, study), about)


def falling(*names):
    """The best learning rates of these parameterizations fall as 1/depth, those of others stay."""
    return lambda row: -3 - np.log2(row["depth"]) * (row["parameterization"] in names)


def test_figure_1_on_planted_optima():
    assert fig1.EXPERIMENT.outcome({"simple_resnet": planted("simple_resnet", falling("sp", "mup"))}).verdict == AGREES
    assert (
        fig1.EXPERIMENT.outcome({"simple_resnet": planted("simple_resnet", falling("depth_mup"))}).verdict == DISAGREES
    )
    wide = planted("simple_resnet", lambda row: falling("mup")(row) + 5 - np.log2(row["width"]))
    assert fig1.EXPERIMENT.outcome({"simple_resnet": wide}).verdict == DISAGREES


@pytest.mark.parametrize(
    ("plain", "beta0", "expected"),
    [
        (("mup",), ("mup",), AGREES),
        ((), (), AGREES),  # both transfer: the scaled networks do
        (("depth_mup",), (), DISAGREES),
        (("mup",), ("depth_mup",), DISAGREES),
    ],
)
def test_figure_2_on_planted_optima(plain, beta0, expected):
    sweeps = {"resnet": planted("resnet", falling(*plain)), "resnet_beta0": planted("resnet_beta0", falling(*beta0))}
    assert fig2.outcome(sweeps).verdict == expected


def test_figure_3_on_planted_optima():
    """The paper's settings must transfer, and the losses of the scaled ones fall; the others have no say."""
    deeper = {"floor": lambda row: 1.0 - 0.1 * np.log2(row["depth"])}
    stays = {name: planted(name, lambda row: -8, **deeper) for name in ("vit", "vit_cosine")}
    outcome = fig3.outcome(stays)
    assert outcome.verdict == AGREES
    assert len(fig3.claimed(stays)) == 3 + 3

    def drifts(*names):
        return {"vit": planted("vit", lambda row: -8 - np.log2(row["depth"]) * (setting(row) in names), **deeper)}

    def setting(row):
        scaled = row["lr_depth"] if row["parameterization"] == "depth_mup" else None
        return row["norm"], row["parameterization"], scaled

    assert fig3.outcome(stays | drifts(("layer", "mup", None))).verdict == DISAGREES
    assert fig3.outcome(stays | drifts(("none", "mup", None))).verdict == AGREES
    drifting = drifts(("none", "depth_mup", -0.5))
    assert fig3.outcome(stays | drifting).verdict == AGREES
    assert (fig3.RULE.outcome(stays).verdict, fig3.RULE.outcome(drifting).verdict) == (AGREES, DISAGREES)
    flat = stays | {"vit": planted("vit", lambda row: -8, floor=lambda row: 1 + 0.1 * np.log2(row["depth"]))}
    assert fig3.outcome(flat).verdict == UNDECIDED
    assert fig3.outcome(flat).number.startswith("scaled, layer norm: best loss ")


def test_figure_4_on_planted_optima():
    middle = {"momentum": -3, "weight_decay": -7, "gamma0": 0, "beta0": 0}
    optima = {name: planted(name, lambda row, at=at: at) for name, at in middle.items()}
    alike = planted("simple_resnet", falling("sp", "mup"))
    outcome = fig4.outcome({**optima, "simple_resnet": alike})
    assert outcome.verdict == AGREES
    assert "losses differ by at most" in outcome.table
    apart = planted("simple_resnet", falling("sp", "mup"), early=lambda row: 2 + 0.1 * np.log2(row["depth"]))
    assert fig4.outcome({**optima, "simple_resnet": apart}).verdict == DISAGREES
    smallest = {**optima, "weight_decay": planted("weight_decay", lambda row: -15), "simple_resnet": alike}
    assert fig4.outcome(smallest).verdict == UNDECIDED  # no optimum to follow
    moves = lambda row: np.log2(row["depth"]) - 2  # noqa: E731
    assert fig4.outcome({**optima, "gamma0": planted("gamma0", moves), "simple_resnet": alike}).verdict == DISAGREES
    assert fig4.outcome({**optima, "beta0": planted("beta0", moves), "simple_resnet": alike}).verdict == AGREES


def test_figure_b3_on_planted_optima():
    """What is best early must be as good at the end."""
    outcome = figb3.outcome({"simple_resnet": planted("simple_resnet", lambda row: -3)})
    assert outcome.verdict == NOT_RUN  # of 20 epochs
    assert outcome.number.startswith("a stand-in, an epoch in tenths, agrees: SimpleResNet, depth_mup: costs at most ")
    sweep = planted("simple_resnet", lambda row: -3)
    for c in sweep.curves:  # early in the training rates four octaves below the best are the best
        for curve, rate in zip(c.trials["curve"], c.trials["learning_rate"], strict=True):
            curve[:12] = 2000 + 100 * (np.log2(rate) + 7) ** 2
    assert ", disagrees: " in figb3.outcome({"simple_resnet": sweep}).number


@pytest.mark.parametrize(
    ("floor", "larger", "deepest"),
    [
        (lambda row: 2 - 0.1 * np.log2(row["depth"]) - 0.1 * np.log2(row["width"]), AGREES, AGREES),
        (lambda row: 1 + 0.1 * np.log2(row["depth"]) - 0.1 * np.log2(row["width"]), DISAGREES, DISAGREES),
        (lambda row: 2 - 0.1 * np.log2(row["width"]), UNDECIDED, UNDECIDED),
    ],
)
def test_figure_b1_on_planted_losses(floor, larger, deepest):
    sweeps = {name: planted(name, lambda row: -3, floor) for name in figb1.SWEEPS}
    assert figb1.larger_is_better(sweeps).verdict == larger
    assert figb1.best_depth(sweeps).verdict == deepest
    assert set(figb1.bests(sweeps)) == {(w, d) for w in figb1.WIDTHS for d in figb1.DEPTHS}
    assert set(figb1.pictures(sweeps)) == {"figb1"}


def test_parameters_of_figure_b1():
    """By hand: width 32 has 4 channels, doubled three times; 3x3 filters; depth 3 has no block in its third stage."""
    read_in, doublings = 9 * 3 * 4, 9 * (4 * 8 + 8 * 16 + 16 * 32)
    blocks, readout = 9 * (4**2 + 8**2 + 32**2), 32 * 2 * 2 * 10
    assert figb1.parameters(32, 3) - (read_in + doublings + blocks + readout) in (0, 10)  # with a bias of the readout


def test_figure_b2_on_planted_optima():
    both = lambda *names: lambda row: falling(*names)(row) + 5 - np.log2(row["width"])  # noqa: E731
    sweeps = {"simple_resnet": planted("simple_resnet", both("sp")), "depth_sp": planted("depth_sp", both("depth_sp"))}
    assert fig1.SP.outcome(sweeps).verdict == AGREES
    sweeps["depth_sp"] = planted("depth_sp", both())  # flat over depth, as theory has it
    assert fig1.SP.outcome(sweeps).verdict == AGREES
    sweeps["depth_sp"] = planted("depth_sp", falling("depth_sp"))  # flat over width
    assert fig1.SP.outcome(sweeps).verdict == DISAGREES


@pytest.mark.parametrize(
    ("early", "late", "expected"),
    [(0.02, 0.02, AGREES), (-0.02, 0.0, DISAGREES), (0.0, 0.0, UNDECIDED), (0.02, -0.02, DISAGREES)],
)
def test_figure_m1_on_planted_losses(early, late, expected):
    """Losses that rise by these shares a doubling of depth under depth_mup and fall so under depth_ode."""

    def slope(share):
        return lambda row: 1 + share * np.log2(row["depth"]) * (1 if row["parameterization"] == "depth_mup" else -1)

    sweeps = {
        "zero_init": planted("zero_init", lambda row: -1.5, slope(late)),
        "zero_init_early": planted("zero_init_early", lambda row: -1.5, early=lambda row: 2 * slope(early)(row)),
    }
    outcome = figm1.outcome(sweeps)
    assert outcome.verdict == expected
    assert "at 2^-1.5" in figm1.between(sweeps)
    assert set(figm1.pictures(sweeps)) == {"figm1", "figm1_dynamics"}


def test_growth_of_the_early_loss():
    """By hand: seeds whose losses are 1, 2^k and 2^2k with k .1, .2 and .3; nothing is said where one diverges."""
    rows = pandas.DataFrame(
        [
            {"depth": depth, "seed": seed, "curve": [9.0] * 10 + [depth ** (0.1 + 0.1 * seed)] * 30, "diverged": False}
            for depth in (1, 2, 4)
            for seed in range(3)
        ]
    )
    half = 4.3027 * 0.1 / 3**0.5  # t with 2 degrees of freedom
    assert np.allclose(np.array(figm1.growth(rows)) / np.log(2), [0.2, 0.2 - half, 0.2 + half], atol=1e-4)
    assert np.isnan(figm1.growth(rows.assign(diverged=True))).all()


def test_every_page_section_is_drawn(tmp_path, monkeypatch):
    """With all sweeps there: a section for each figure, and the pictures that they name."""
    sweeps = {name: planted(name, lambda row: -3) for name in SWEEPS}
    text = figures.drawn(PAPER, sweeps, tmp_path, monkeypatch)
    assert text.count("\n### ") == len(PAPER.figures)

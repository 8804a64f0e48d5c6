"""fit.scaling_law: planted laws, what a table may be, and what is wrong with one."""

from __future__ import annotations

import csv
import math

import numpy as np
import pandas
import pytest

from depthmup import fit
from depthmup.fit import joint_fit
from depthmup.fit.published_rules import PUBLISHED_RULES
from depthmup.fit.scaling_law import FAMILIES
from depthmup.rules.optim import OPTIONS, family_of
from experiments import law as experiment

Row = dict[str, float]
SIZES = {"width": 1024, "batch_size": 512, "steps": 8192}


def sweep(name: str = "straight", seed: int = 0) -> tuple[list[Row], list[experiment.Target]]:
    return experiment.planted(experiment.CASES[name], np.random.default_rng(seed))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return sweep()[0]


@pytest.fixture(scope="module")
def law(rows: list[Row]) -> fit.ScalingLaw:
    return fit.scaling_law(rows)


def test_exponents_of_a_straight_law(law: fit.ScalingLaw) -> None:
    planted = dict(zip(("width", "batch_size", "steps"), experiment.Case().exponents, strict=True))
    assert law.exponents.keys() == planted.keys()
    for axis, estimate in law.exponents.items():
        assert estimate.low - 0.05 < planted[axis] < estimate.high + 0.05
        assert estimate.high - estimate.low < 0.5


@pytest.mark.parametrize("name", ["straight", "bent", "bent, the target far above", "straight, scatter .3"])
def test_intervals_hold_the_truth(name: str) -> None:
    held = []
    for seed in range(5):
        table, targets = sweep(name, 100 + seed)
        fitted = fit.scaling_law(table)
        for sizes, best, loss in targets:
            p = fitted.at(**sizes)
            at_best = fitted.loss([{**sizes, "learning_rate": 2.0**best}])
            held.append((p.low <= 2.0**best <= p.high, at_best.low[0] <= loss <= at_best.high[0]))
    assert np.mean(held, axis=0).min() >= 0.8  # 20 each; experiments/law.py has the coverage of many


def test_how_well_it_transfers(law: fit.ScalingLaw) -> None:
    """The planted curvature is one at all sizes, and the loss that a larger width gains falls as width^-.6."""
    quality = law.transfer()
    kappa = quality.kappa["width"]
    assert kappa.low < 0.6 < kappa.high
    assert kappa.high - kappa.low < 1.5
    assert set(quality.kappa) == {"width", "steps"}
    assert quality.error.value == pytest.approx(0.1, abs=0.04)  # the planted scatter
    infinite = 1.6 + 0.6 * (128 * 2048 / 2**15) ** -0.25
    assert quality.asymptotic_loss.low < infinite < quality.asymptotic_loss.high
    assert quality.penalty is None
    assert len(str(quality).splitlines()) == 4


def test_what_a_parameterization_costs_at_infinite_size(law: fit.ScalingLaw, rows: list[Row]) -> None:
    worse = fit.scaling_law([{**row, "loss": 1.05 * row["loss"]} for row in rows])
    penalty = worse.transfer(law).penalty
    assert penalty is not None
    assert penalty.low < 0.05 < penalty.high
    assert "above the reference's by" in str(worse.transfer(law))


def test_figures_of_a_law_need_its_sizes(rows: list[Row], law: fit.ScalingLaw) -> None:
    """Two laws of the same rows are compared at the same data, whatever their sizes are called; without a size of the
    model there is no infinite one; optima on a plane have no error."""
    one_width = fit.scaling_law([row for row in without(rows, "width") if row["batch_size"] == 16][: 3 * 7])
    assert one_width.transfer().asymptotic_loss is None
    assert "infinite" not in str(one_width.transfer())
    with pytest.raises(ValueError, match="the law is in width, steps, batch_size, its reference in steps, batch_size"):
        law.transfer(one_width)
    table = pandas.DataFrame(rows)
    table["tokens"] = table["batch_size"] * table["steps"]
    by_tokens = fit.scaling_law(table.drop(columns="steps")).transfer()
    assert by_tokens.asymptotic_loss.value == pytest.approx(law.transfer().asymptotic_loss.value, rel=0.02)
    exact = [
        {"width": w, "steps": t, "learning_rate": 2.0**x, "loss": 2 + w**-0.5 + 0.02 * (x + math.log2(w) / 2) ** 2}
        for w in (32, 64, 128, 256)
        for t in (100, 200, 400)
        for x in range(-8, 2)
    ]
    assert fit.scaling_law(exact).transfer().error.high < 0.05


def test_best_rates_of_many_sizes(law: fit.ScalingLaw) -> None:
    table = {"width": [256, 1024], "batch_size": [128, 512], "steps": [2048, 8192]}
    rates = law.rates(table)
    for i in range(2):
        p = law.at(**{axis: sizes[i] for axis, sizes in table.items()})
        assert rates.value[i] == pytest.approx(p.learning_rate, rel=0.03)  # the scatter is drawn
        assert rates.low[i] < p.learning_rate < rates.high[i]
    alone = law.rates(table, scatter=False)
    assert alone.high[1] / alone.low[1] != rates.high[1] / rates.low[1]
    assert alone.value == pytest.approx(rates.value, rel=0.15)


def test_names_of_parameterizations(rows: list[Row]) -> None:
    laws = {name: fit.scaling_law([{**row, "parameterization": name} for row in rows]) for name in NAMES}
    assert laws["mup"].exponents == laws["muP"].exponents == laws["\u03bcP"].exponents
    assert laws["muP"].rules == laws["mup"].rules
    assert laws["standard"].exponents == laws["sp"].exponents != laws["mup"].exponents
    assert laws["standard"].rules == laws["sp"].rules != ()
    assert "there is no prior for parameterization 'my own'" in repr(laws["my own"])
    assert laws["my own"].rules == ()


NAMES = ("mup", "muP", "\u03bcP", "sp", "standard", "my own")


def test_rules_are_of_the_learning_rate(rows: list[Row]) -> None:
    decays = [{**without([row], "learning_rate")[0], "weight_decay": row["learning_rate"]} for row in rows]
    fitted = fit.scaling_law(decays, hyperparameter="weight_decay")
    assert fitted.exponents == fit.scaling_law(rows, prior=None).exponents
    assert fitted.rules == ()
    assert "there is no prior for weight_decay" in repr(fitted)


def test_rules_on_sizes_that_move_together_are_not_judged(rows: list[Row]) -> None:
    line = [row for row in rows if row["batch_size"] / row["width"] == 0.25 and row["steps"] / row["width"] == 8]
    assert fit.scaling_law(line).rules == ()


def test_an_error_that_all_rates_of_a_size_share(rows: list[Row]) -> None:
    """It is no smooth change with the sizes: beyond the rows the loss stays what it was."""
    rng, shared = np.random.default_rng(0), dict[tuple[float, ...], float]()
    noisy = [
        {**row, "loss": row["loss"] * shared.setdefault((row["width"], row["batch_size"], row["steps"]), 1 + 0.02 * r)}
        for row, r in zip(rows, rng.normal(size=len(rows)), strict=True)
    ]
    plain, loss = (fit.scaling_law(of).at(**SIZES).loss for of in (rows, noisy))
    assert loss == pytest.approx(plain, rel=0.04)


def test_a_training_that_fails_costs_no_more(law: fit.ScalingLaw) -> None:
    loss = law.loss([{**SIZES, "learning_rate": 100.0}])
    assert 2 < loss.mean[0] / law.at(**SIZES).loss < 10
    assert loss.high[0] / loss.low[0] < 10


def test_published_rules_beside_the_law(rows: list[Row], law: fit.ScalingLaw) -> None:
    checks = {(check.rule, check.size): check for check in law.rules}
    assert checks["muP as one rate", "width"].measured == law.exponents["width"]
    assert checks["muP as one rate", "width"].holds  # -1, where -.8 is planted
    assert not checks["timescale", "batch_size"].holds  # 0, where .65 is planted
    at_equal_data = checks["sde", "batch_size"].measured
    assert at_equal_data.value == pytest.approx(law.along({"batch_size": 1, "steps": -1}).value)
    assert at_equal_data.low < 0.4 + 0.25 < at_equal_data.high
    assert ("muP", "width") not in checks  # of base rates
    under_mup = fit.scaling_law([{**row, "parameterization": "mup"} for row in rows])
    assert {check.rule for check in under_mup.rules} == {"muP", "Power scheduler"}
    table = pandas.DataFrame(rows)
    table["parameters"], table["tokens"] = table["width"] ** 2, table["batch_size"] * table["steps"]
    by_tokens = fit.scaling_law(table.drop(columns=["width", "steps"]))
    step_law = {check.size: check.measured for check in by_tokens.rules if check.rule == "Step Law"}
    assert step_law["tokens"].value == pytest.approx(by_tokens.along({"tokens": 1, "batch_size": 0.571}).value)


def test_an_optimizer_without_rules(rows: list[Row]) -> None:
    fitted = fit.scaling_law([{**row, "optimizer": "shampoo"} for row in rows])
    free = fit.scaling_law(rows, prior=None)
    assert fitted.exponents == free.exponents
    assert "there is no prior for shampoo" in repr(fitted)
    assert fitted.rules == ()
    assert fit.scaling_law([{**row, "optimizer": "AdamW"} for row in rows]).notes == []


def test_the_optimum_bends_at_a_critical_batch_size() -> None:
    """Far above it a larger batch wants no larger rate; a straight law has one exponent."""
    for name, low, high in (("straight", 0.15, 0.6), ("bent, the target far above", -0.6, 0.1)):
        fitted = fit.scaling_law(sweep(name, 3)[0])
        rates = [fitted.at(width=128, batch_size=batch, steps=1024).learning_rate for batch in (128, 512)]
        assert low < math.log2(rates[1] / rates[0]) / 2 < high


def test_a_prediction(law: fit.ScalingLaw) -> None:
    p = law.at(**SIZES)
    assert 0 < p.low < p.learning_rate < p.high
    assert 0 <= p.cost < p.worst_cost
    assert p.loss_low < p.loss < p.loss_high
    assert p.outside == pytest.approx({"width": 2, "batch_size": 2, "steps": 2})
    assert sum(p.shares.values()) == pytest.approx(1)
    lines = str(p).splitlines()
    assert len(lines) == 4
    assert "learning rate" in lines[0]
    assert "+2.0 octaves in width" in lines[3]


def test_the_interval_grows_with_the_distance(law: fit.ScalingLaw) -> None:
    near, far = law.at(width=256, batch_size=128, steps=2048), law.at(width=4096, batch_size=2048, steps=32768)
    assert near.outside == {}
    assert math.log2(far.high / far.low) > math.log2(near.high / near.low)
    assert far.loss_high / far.loss_low > near.loss_high / near.loss_low
    assert far.worst_cost > near.worst_cost


def test_losses_of_rows_of_any_rate(law: fit.ScalingLaw, rows: list[Row]) -> None:
    loss = law.loss(rows)
    truth = np.array([row["loss"] for row in rows])
    assert np.median(np.abs(loss.mean / truth - 1)) < 0.01
    assert ((loss.low <= truth) & (truth <= loss.high)).mean() > 0.9


def test_tables_of_every_form(law: fit.ScalingLaw, rows: list[Row], tmp_path) -> None:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    rate = law.at(**SIZES).learning_rate
    for table in (pandas.DataFrame(rows), columns, path, str(path)):
        assert fit.scaling_law(table).at(**SIZES).learning_rate == pytest.approx(rate, rel=1e-6)


def test_csv_as_it_comes(law: fit.ScalingLaw, rows: list[Row], tmp_path) -> None:
    """With the mark that Excel writes, spaces beside names, empty lines; a line of other length is named."""
    lines = [", ".join(rows[0]), "", *(",".join(map(str, row.values())) for row in rows)]
    path = tmp_path / "rows.csv"
    path.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    assert fit.scaling_law(path).exponents == law.exponents
    for number, line in ((3, "64.0,16.0"), (len(lines), lines[-1] + ",1")):
        path.write_text("\n".join([*lines[: number - 1], line, *lines[number:]]))
        with pytest.raises(ValueError, match=f"line {number} of .* cells, the first line names 5 columns"):
            fit.scaling_law(path)


def test_parameters_and_tokens(rows: list[Row]) -> None:
    table = pandas.DataFrame(rows)
    table["parameters"], table["tokens"] = table["width"] ** 2, table["batch_size"] * table["steps"]
    fitted = fit.scaling_law(table.drop(columns=["width", "steps"]))
    assert fitted.axes == ("parameters", "tokens", "batch_size")
    assert fitted.exponents["parameters"].value == pytest.approx(-0.4, abs=0.15)  # of width, halved
    assert fitted.exponents["batch_size"].value == pytest.approx(0.4 + 0.25, abs=0.2)  # at as many tokens
    same = fit.scaling_law(table, sizes=["parameters", "tokens", "batch_size"])
    assert same.exponents == fitted.exponents


def test_without_a_prior_and_with_one_of_ones_own(rows: list[Row], law: fit.ScalingLaw) -> None:
    free = fit.scaling_law(rows, prior=None)
    assert free.exponents["width"].value == pytest.approx(law.exponents["width"].value, abs=0.15)
    sure = fit.scaling_law(rows, prior=fit.Prior({"width": (-1.1, 0.001)}))
    assert sure.exponents["width"].value == pytest.approx(-1.1, abs=0.05)


def test_an_axis_with_one_value_has_the_priors_exponent(rows: list[Row]) -> None:
    fitted = fit.scaling_law([row for row in rows if row["width"] == 128], prior=fit.Prior({"width": (-1.0, 0.1)}))
    assert fitted.fixed == ("width",)
    assert fitted.exponents["width"].value == pytest.approx(-1, abs=0.05)
    assert "width has one value" in repr(fitted)
    larger = fitted.at(width=512, batch_size=128, steps=2048)
    same = fitted.at(batch_size=128, steps=2048)
    assert math.log2(larger.learning_rate / same.learning_rate) == pytest.approx(-2, abs=0.2)
    assert larger.shares["prior"] > same.shares["prior"]


def test_sizes_that_move_together(rows: list[Row]) -> None:
    line = [row for row in rows if row["batch_size"] / row["width"] == 0.25 and row["steps"] / row["width"] == 8]
    fitted = fit.scaling_law(line)
    assert set(fitted.together) == {"width", "batch_size", "steps"}
    assert "cannot be told apart" in repr(fitted)
    p = fitted.at(width=512, batch_size=128, steps=4096)
    assert math.log2(p.learning_rate) == pytest.approx(-8 + 2 * (-0.8 + 0.4 - 0.25) - 0.6, abs=1.5)


def test_a_rate_that_diverges_says_that_it_is_too_high() -> None:
    rates = 2.0 ** np.arange(-10, -3)
    table = [
        {"width": width, "learning_rate": rate, "loss": 2 + 0.05 * (math.log2(rate) + 2 + math.log2(width)) ** 2}
        for width in (16, 32, 64, 128)
        for rate in rates
    ]
    whole = fit.scaling_law(table)
    for row in table:
        if row["learning_rate"] * row["width"] > 0.3:
            row["loss"], row["diverged"] = math.nan, True
    cut = fit.scaling_law(table)
    assert cut._of.rows.diverged.any()
    assert math.log2(cut.at(width=256).learning_rate / whole.at(width=256).learning_rate) == pytest.approx(0, abs=0.5)


def test_seeds_narrow_the_interval() -> None:
    rng = np.random.default_rng(0)
    table = [
        {"width": w, "learning_rate": 2.0**x, "seed": s, "loss": math.exp(0.02 * (x + 8) ** 2 + 0.02 * rng.normal())}
        for w in (32, 64, 128, 256)
        for x in range(-12, -4)
        for s in range(6)
    ]
    one, six = (fit.scaling_law([row for row in table if row["seed"] < n]).exponents["width"] for n in (1, 6))
    assert six.high - six.low < one.high - one.low


def test_another_hyperparameter_and_measure() -> None:
    table = [
        {"depth": d, "momentum": 2.0**x, "validation_accuracy": 0.9 - 0.01 * (x + math.log2(d)) ** 2}
        for d in (2, 4, 8)
        for x in range(-6, 3)
    ]
    fitted = fit.scaling_law(table, hyperparameter="momentum", measure="validation_accuracy", prior=None)
    assert fitted.exponents["depth"].value == pytest.approx(-1, abs=0.2)
    assert str(fitted.at(depth=16)).startswith("momentum")
    short = [{"val_acc" if name == "validation_accuracy" else name: v for name, v in row.items()} for row in table]
    again = fit.scaling_law(short, hyperparameter="momentum", measure="val_acc", prior=None)
    assert again.exponents == fitted.exponents


def test_a_wide_interval_says_what_is_missing(rows: list[Row]) -> None:
    fitted = fit.scaling_law([row for row in rows if row["width"] == 128], prior=None)
    p = fitted.at(width=4096, batch_size=128, steps=2048)
    assert "octaves wide: train a second width" in str(p)


def without(table: list[Row], *names: str) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in names} for row in table]


def changed(table: list[Row], **values: object) -> list[dict[str, object]]:
    return [{**table[0], **values}, *table[1:]]


BAD = {
    "the table is empty": lambda rows: [],
    "no column 'loss'": lambda rows: without(rows, "loss"),
    "no column 'learning_rate'": lambda rows: without(rows, "learning_rate"),
    "no column of a size": lambda rows: without(rows, "width", "batch_size", "steps"),
    "all rows have one size": lambda rows: rows[:7],
    "every row has diverged": lambda rows: [{**row, "loss": math.nan, "diverged": True} for row in rows],
    "width must be positive": lambda rows: changed(rows, width=0),
    "steps must be positive": lambda rows: changed(rows, steps=-4),
    "learning_rate must be positive": lambda rows: changed(rows, learning_rate=0.0),
    "loss must not be negative": lambda rows: changed(rows, loss=-1.0),
    "diverged must be True or False": lambda rows: changed(rows, diverged="perhaps"),
    "the same rate and seed at .*: give them a column 'seed'": lambda rows: [*rows, rows[0]],
    "they differ in decay, unknown to the law": lambda rows: [{**r, "decay": d} for r in rows for d in (0, 1)],
    "2 values of optimizer": lambda rows: [{**row, "optimizer": "adam" if i else "sgd"} for i, row in enumerate(rows)],
    "there is no table 'no.csv'": lambda rows: "no.csv",
    "equally long": lambda rows: {"width": [1, 2], "loss": [1.0]},
}


@pytest.mark.parametrize("words", BAD)
def test_bad_tables(words: str, rows: list[Row]) -> None:
    with pytest.raises(ValueError, match=words) as error:
        fit.scaling_law(BAD[words](rows))
    assert "\n" not in str(error.value)


def test_bad_arguments(rows: list[Row]) -> None:
    for arguments, words in (
        ({"prior": "rule"}, "prior must be"),
        (
            {"prior": fit.Prior({"tokens": (-0.3, 0.1)})},
            "unknown axis of a prior 'tokens'.*at one batch size are steps",
        ),
        ({"prior": fit.Prior({"widht": (-0.3, 0.1)})}, "unknown axis of a prior 'widht'; did you mean 'width'"),
        ({"prior": fit.Prior({"width": (-0.3, 0.0)})}, "the prior of width must have a finite mean and a positive sd"),
        ({"prior": fit.Prior({"width": -0.3})}, r"the prior of width must be \(mean, sd\)"),  # type: ignore[dict-item]
        ({"sizes": ["breadth"]}, "unknown size"),
        ({"sizes": ["depth"]}, "no column 'depth'"),
        ({"hyperparameter": "decay"}, "no column 'decay'"),
        ({"measure": "error"}, "no column 'error'"),
    ):
        with pytest.raises(ValueError, match=words):
            fit.scaling_law(rows, **arguments)


def test_bad_targets(rows: list[Row]) -> None:
    fitted = fit.scaling_law([{**row, "optimizer": "adamw"} for row in rows])
    for sizes, words in (
        ({"width": 512, "steps": 512}, "the target has no batch_size"),
        ({**SIZES, "depth": 4}, "the rows have no depth"),
        ({**SIZES, "width": 0}, "width must be positive"),
        ({**SIZES, "steps": -1}, "steps must be positive"),
        ({**SIZES, "width": 8}, "width 8 is below the rows', which begin at 64"),
        ({**SIZES, "optimizer": "muon"}, "the rows have optimizer 'adamw', the target has 'muon'"),
        ({**SIZES, "schedule": "cosine"}, "the rows have no column 'schedule'"),
    ):
        with pytest.raises(ValueError, match=words):
            fitted.at(**sizes)
    assert fitted.at(**SIZES, optimizer="AdamW") == fitted.at(**SIZES)
    with pytest.raises(ValueError, match="no column 'batch_size'"):
        fitted.loss(without(rows, "batch_size"))


def test_a_root_of_low_rank_has_the_covariance() -> None:
    x = np.linspace(0, 3, 40)[:, None] * np.ones(2)
    covariance = joint_fit.Kernel("level", "batch", 2.0, 1.0).between(x, x)
    root, pivots = joint_fit.pivoted(covariance, 1e-4)
    assert root.shape == (40, len(pivots))
    assert len(pivots) < 20
    assert np.abs(root @ root.T - covariance).max() < 2e-4
    assert np.allclose(np.triu(root[pivots], 1), 0)


def test_the_valley_is_smooth_at_its_optimum() -> None:
    u = np.array([-1e-3, 0.0, 1e-3])
    for side in (-2.0, 0.0, 0.2):
        value = joint_fit.valley(u, np.full(3, side), np.full(3, side))
        assert value[1] == 0
        assert value[[0, 2]] == pytest.approx(0.5e-6, rel=1e-2)


def test_published_rules_of_a_family_are_those_of_each_of_its_optimizers() -> None:
    families = {name: family_of(name) for name in OPTIONS}
    with_rules = {family for rule in PUBLISHED_RULES for family in rule.families}
    assert FAMILIES == {name: family for name, family in families.items() if family in with_rules}

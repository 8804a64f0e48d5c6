"""The verb `law`: what a table of trainings says of a large run, by a program without JAX."""

import csv
import itertools
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from depthmup import fit
from depthmup.cli import law
from depthmup.fit.law_rows import AXES, CONDITIONS
from depthmup.report.law import LargeRun

ROOT = Path(__file__).parent.parent
ALONE = ("numpy", "scipy", "matplotlib")  # besides what these import
SIZES = tuple(itertools.product((1e6, 4e6, 1.6e7), (1e9, 4e9)))


def table(sizes=SIZES, **columns):
    """Bowls in log learning rate whose best rate falls with parameters and tokens; every sixth rate diverges."""
    rng, rows = np.random.default_rng(0), []
    for (n, d), octave in itertools.product(sizes, range(-14, -5)):
        x = octave + 9 + 0.5 * math.log2(n / 4e6) + 0.25 * math.log2(d / 2e9)
        loss = 2 + (n / 1e6) ** -0.3 + (d / 1e9) ** -0.3
        loss *= 1 + 0.01 * x * x + 0.0005 * rng.standard_normal()
        rows.append({"N": n, "D": d, "lr": 2.0**octave, "val_loss": math.nan if x > 3 else loss} | columns)
    return rows


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.fixture(scope="module")
def large():
    columns = {"parameters": "N", "tokens": "D", "learning_rate": "lr", "loss": "val_loss"}
    rows = table()
    named = {name: [row[column] for row in rows] for name, column in columns.items()}
    return LargeRun(fit.scaling_law(named), named, target={"parameters": 6.4e7, "tokens": 1.6e10})


def test_without_jax(tmp_path):
    """With NumPy, SciPy and Matplotlib alone, by the usual names of columns: the four lines, exponents, a page."""
    path, report = write(tmp_path / "runs.csv", table()), tmp_path / "law.html"
    words = ["law", path, "--target=params=6.4e7,tokens=1.6e10", f"--report={report}"]
    program = f"""
import sys, {", ".join(ALONE)}, matplotlib.figure, scipy.linalg
known = {{name.split(".")[0] for name in sys.modules}} | {{"depthmup", *sys.stdlib_module_names}}
class Alone:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("jax", "flax", "optax", "pandas", "jinja2", "absl", "ml_collections", "markupsafe"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Alone())
sys.argv[1:] = {words!r}
from depthmup.__main__ import main
try:
    main()
except SystemExit as end:
    print(end.code, *{{name.split(".")[0] for name in sys.modules}} - known)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    rate, cost, loss, outside, _, source, *exponents, heading = lines[:-5]
    of_parameters, of_tokens, columns, wrote, status = lines[-5:]
    assert columns == "columns: N is parameters, D is tokens, lr is learning_rate, val_loss is loss"
    assert heading == "published rules, and whether they hold here:"
    assert of_parameters.startswith("  parameters: Step Law -0.71 no, ")  # -.5 is planted
    assert "token_horizon -0.32 yes" in of_tokens
    assert re.match(r"learning rate \S+ \[\S+, \S+\], 95%", rate)
    assert "% of the loss" in cost
    assert loss.startswith("loss ")
    assert {"parameters", "tokens"} <= set(outside.replace(",", " ").replace(";", " ").split())
    assert source.startswith("54 trainings at 6 sizes, parameters 1M to 16M, tokens 1B to 4B; octaves by which")
    assert [line.split()[0] for line in exponents] == ["parameters", "tokens"]
    assert (wrote, status) == (f"report: {report}", "0")
    page = report.read_text()
    assert "Target: parameters 64M, tokens 16B." in page
    assert rate in page
    assert page.count("data:image/png;base64,") == 1
    assert "<summary>Published rules</summary>" in page
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)  # opens offline


def test_the_prediction_is_near_the_truth(large):
    p = large.prediction
    truth = -9 - 0.5 * 4 - 0.25 * 3
    assert abs(math.log2(p.learning_rate) - truth) < 1
    assert math.log2(p.low) < truth < math.log2(p.high)
    assert str(large).splitlines()[:4] == str(p).splitlines()


def test_the_picture(large):
    """A panel for each axis with the target and all measured sizes, moved to its line or in color on it."""
    panels = large.figure().axes
    assert [panel.get_xlabel() for panel in panels] == ["parameters", "tokens"]
    assert [panel.get_title() for panel in panels] == ["at tokens 4B", "at parameters 16M"]
    for panel, axis, on_line in zip(panels, ("parameters", "tokens"), (3, 2), strict=True):
        (stars,) = (line for line in panel.lines if line.get_marker() == "*")
        assert stars.get_xydata()[0] == pytest.approx([large.target[axis], large.prediction.learning_rate])
        (pale,) = (line for line in panel.lines if line.get_marker() == ".")
        assert len(pale.get_xdata()) == 6 - on_line
        (other,) = large.best.sizes.keys() - {axis}
        at = large.best.sizes[other]
        moved = large.best.value * (at.max() / at) ** large.law.exponents[other].value
        assert pale.get_ydata() == pytest.approx(moved[at < at.max()], rel=0.02)
        assert panel.get_xlim()[1] > large.target[axis]
    n, d = large.best.sizes.values()
    assert large.best.value == pytest.approx(2.0**-9 * (n / 4e6) ** -0.5 * (d / 2e9) ** -0.25, rel=0.1)


def test_sizes_that_move_together():
    """One panel, over the first of them."""
    rows = table([(1e6, 1e9), (4e6, 4e9), (1.6e7, 1.6e10)])
    columns = {"parameters": "N", "tokens": "D", "learning_rate": "lr", "loss": "val_loss"}
    named = {name: [row[column] for row in rows] for name, column in columns.items()}
    together = LargeRun(fit.scaling_law(named), named)
    (panel,) = together.figure().axes
    assert panel.get_title() == "with it move tokens"
    assert "note: parameters, tokens move together" in str(together)
    assert str(together).startswith("no target: with parameters=...,tokens=... of the large run comes")


def test_rows_are_those_of_the_target(tmp_path, capsys):
    """Of several optimizers that of the target; its sizes are those that it names."""
    rows = table(optimizer="adam", steps=1) + table(optimizer="sgd", steps=1)
    path = write(tmp_path / "runs.csv", rows)
    assert law.run_law("depthmup", ["law", path]) == 2
    assert "the rows have 2 values of optimizer" in capsys.readouterr().err
    columns, names = law._columns(path, {}, {"tokens": 1e10, "optimizer": "SGD"})
    assert names == {
        "parameters": "N",
        "tokens": "D",
        "learning_rate": "lr",
        "loss": "val_loss",
        "optimizer": "optimizer",
    }
    assert set(columns) == {"parameters", "tokens", "learning_rate", "loss", "optimizer"}
    assert set(columns["optimizer"]) == {"sgd"}
    assert "steps" in law._columns(path, {}, {})[0]
    named, _ = law._columns(path, {"steps": "depth", "N": "width"}, {})
    assert {"width", "depth"} <= set(named)
    assert not {"steps", "parameters"} & set(named)


def test_sizes_that_nearly_move_together():
    """No axis has two sizes at which the others stay: one panel, with the law."""
    rows = table([(1e6, 1e9), (5e6, 3e9), (1.6e7, 2e10), (7e7, 5e10)])
    columns = {"parameters": "N", "tokens": "D", "learning_rate": "lr", "loss": "val_loss"}
    named = {name: [row[column] for row in rows] for name, column in columns.items()}
    (panel,) = LargeRun(fit.scaling_law(named), named).figure().axes
    assert any(line.get_linestyle() == "--" for line in panel.lines)


def test_a_panel_lies_near_the_target():
    """Of several lines with as many sizes that at the sizes of the target."""
    sizes = list(itertools.product((1e6, 4e6, 1.6e7), (1e9, 2e9, 4e9)))
    columns = {"parameters": "N", "tokens": "D", "learning_rate": "lr", "loss": "val_loss"}
    named = {name: [row[column] for row in table(sizes)] for name, column in columns.items()}
    for tokens, title in ((1.9e9, "at tokens 2B"), (1e10, "at tokens 4B")):
        large = LargeRun(fit.scaling_law(named), named, target={"parameters": 6.4e7, "tokens": tokens})
        assert large.figure().axes[0].get_title() == title


def test_an_accuracy_is_maximized(tmp_path, capsys):
    rows = [{**row, "acc": 1 - row["val_loss"] / 10} for row in table()]
    path = write(tmp_path / "runs.csv", [{name: v for name, v in row.items() if name != "val_loss"} for row in rows])
    target = "--target=N=6.4e7,D=1.6e10"
    assert law.run_law("depthmup", ["law", path, target]) == 0
    by_accuracy = float(capsys.readouterr().out.split()[2])
    assert law.run_law("depthmup", ["law", write(tmp_path / "losses.csv", table()), target]) == 0
    assert by_accuracy == pytest.approx(float(capsys.readouterr().out.split()[2]), rel=0.3)
    assert law.run_law("depthmup", ["law", path, target, "--columns=acc:loss"]) == 2
    assert "acc looks like an accuracy, whose largest value is best: acc:accuracy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: TABLE.csv"),
        (["none.csv"], "there is no table 'none.csv'"),
        (["RUNS", "--colums=a:b"], "unrecognized arguments: --colums=a:b"),
        (["RUNS", "--target=7e9"], "--target is SIZE=N,..., got '7e9'"),
        (["RUNS", "--target=param=7e9"], "unknown size of --target 'param'; did you mean 'parameters'?"),
        (["RUNS", "--target=N=big"], "--target: parameters must be a number, got 'big'"),
        (["RUNS", "--columns=x:tokens"], "--columns: RUNS has no column 'x' (it has N, D, lr, val_loss, eval_loss)"),
        (["RUNS", "--columns=D:token"], "unknown name in --columns 'token'; did you mean 'tokens'?"),
        (["RUNS"], "columns val_loss, eval_loss are all a loss: give --columns=val_loss:loss for one"),
        (["RUNS", "--columns=lr:seed,D:loss"], "RUNS has no column learning_rate (or lr, max_lr, peak_lr), it has N"),
        (["RUNS", "--columns=D:loss", "--target=N=1e7,D=1e9"], "RUNS has no column tokens (or d, n_tokens, num_tokens"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(words, message, tmp_path, capsys):
    path = write(tmp_path / "runs.csv", table(eval_loss=1.0))
    assert law.run_law("depthmup", ["law", *(word.replace("RUNS", path) for word in words)]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert message.replace("RUNS", path) in done.err


def test_the_help(capsys):
    assert law.run_law("depthmup", ["law", "--help"]) == 0
    assert capsys.readouterr().out.startswith("depthmup law TABLE.csv [FLAGS]: say which learning rate")


def test_the_names_of_columns_are_a_closed_table():
    names = [name for usual, others in law.NAMES.items() for name in (usual, *others)]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() for name in names)
    assert {*AXES, *CONDITIONS} <= set(law.NAMES)

"""Every wrong call ends in one line that says what was wrong: those of wrong_calls.toml, any value of any setting."""

import json
import math
import random
import struct
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas
import pytest
from absl import flags

import depthmup as dm
from configs import default
from depthmup import fit, measure, sweep, theory
from depthmup.cli import verbs
from depthmup.cli.arguments import parse_command
from depthmup.models import MODELS
from depthmup.rules.batch_rules import Run
from depthmup.settings import Interval, SettingsError, from_config, keys, value_of
from tests.test_main import ROOT, call  # noqa: F401 - a fixture
from tests.test_model_sweep import LinenNet as Net

# ml_collections reads config files by a way that Python calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")

CALLS = tomllib.loads(Path(__file__).with_name("wrong_calls.toml").read_text())
OF_COMMAND = {
    "settings": lambda text: ["train", f"--config.{text}"],
    "axes": lambda text: ["sweep", "--dry_run", f"--config.sweep.axes={text}"],
    "command": str.split,
    "own command": str.split,
}


def tables(of_command):
    """The tables of calls; those of a model of one's own are slow tests."""
    chosen = (table for table in CALLS if (table in OF_COMMAND) == of_command)
    return [pytest.param(table, marks=pytest.mark.slow if table.startswith("own") else ()) for table in chosen]


@pytest.fixture(scope="module")
def names():
    """What the calls of wrong_calls.toml are written with: modules, and arguments that are right."""
    X = np.ones((4, 5), np.float32)
    P = dm.parameterization("depth_mup", base_width=4, base_depth=2)
    LRS = 2.0 ** np.arange(-8, 0)
    CURVE = 1 + 0.1 * (np.arange(8) - 4.0)[:, None] ** 2 + 0.01 * np.arange(3)
    trials = [(depth, i, seed) for depth in (2, 4) for i in range(8) for seed in range(3)]
    ROWS = [
        {"depth": depth, "learning_rate": float(LRS[i]), "seed": seed, "loss": float(CURVE[i, seed]), "diverged": False}
        for depth, i, seed in trials
    ]
    KX, Y = np.array([[1, 0.5], [0.5, 1]]), np.array([1.0, -1.0])

    def init(width, depth):
        return Net(width, depth).init(jax.random.key(0), X)["params"]

    def rows(**changed):
        return [{**ROWS[0], **changed}, *ROWS[1:]]

    def without(column):
        return [{name: value for name, value in row.items() if name != column} for row in ROWS]

    def saved(**changed):
        return json.dumps([{**row, **changed} for row in json.loads(JSON)])

    SPECS, PARAMS, TRANSFER = dm.infer_specs(init, layout="in_out", width=8, depth=2), init(8, 2), fit.transfer(ROWS)
    JSON, nan, inf = dm.specs_to_json(SPECS), math.nan, math.inf
    modules = {"dm": dm, "fit": fit, "jnp": jnp, "measure": measure, "np": np, "pandas": pandas, "theory": theory}
    return {**modules, "Net": Net, "Run": Run, **locals()}


def answer(text, names):
    """The line that a call ends in."""
    try:
        result = eval(text, names)
    except ValueError as error:
        lines = str(error).splitlines()
        return lines[0] if len(lines) == 1 else f"{len(lines)} lines: {lines}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"accepted: {result}"


@pytest.fixture(scope="module")
def own():
    """What the calls of a model of one's own are written with: the model, its data, and a sweep `sw` that is right."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(32, 5)).astype(np.float32), rng.integers(0, 3, 32)
    m = dm.setup("depth_mup", Net, X[:8], width=8, depth=2, base=(4, 1), fan_in_init=False)

    def loss(logits, labels):
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def sw(loss=loss, batches=(X, Y), **changed):
        rates = tuple(2.0**k for k in range(-5, 0))
        right = {"batch_size": 8, "steps": 4, "optimizer": "sgd", "learning_rates": rates, "widths": (4, 8)}
        return m.sweep(loss, batches, **{**right, "depths": (), "seeds": 1, "progress": False, **changed})

    modules = {"dm": dm, "jnp": jnp, "math": math, "np": np, "optax": optax, "pandas": pandas, "sweep": sweep}
    return {**modules, "Net": Net, "P": m.init(jax.random.key(0)), **locals()}


@pytest.mark.parametrize("table", tables(of_command=False))
def test_calls_of_the_package(table, request):
    names = request.getfixturevalue("own" if table.startswith("own") else "names")
    answers = {text: answer(text, names) for text in CALLS[table]}
    assert {text: line for text, line in answers.items() if CALLS[table][text] not in line} == {}


@pytest.mark.parametrize("table", tables(of_command=True))
def test_calls_of_the_command(table, call):  # noqa: F811
    wrong = {}
    for text, message in CALLS[table].items():
        done = call(*OF_COMMAND[table](text))
        line = done.stderr.lstrip("\r")  # of a progress bar
        is_one_line = line.startswith("error: ") and line.count("\n") == 1 and not done.stdout
        if done.returncode != 2 or not is_one_line or message not in line or "Traceback" in line:
            wrong[text] = done
    assert wrong == {}


def test_the_list_is_long():
    assert sum(len(CALLS[table]) for table in OF_COMMAND) >= 80
    assert sum(len(calls) for calls in CALLS.values()) >= 1000


@pytest.mark.parametrize(
    "text",
    [
        "fit.transfer(pandas.DataFrame(ROWS))",
        "fit.transfer(rows(loss=nan, diverged=True))",
        "fit.transfer(rows(loss=inf, diverged=np.True_))",
        "fit.transfer(without('diverged'), cap=inf)",
        "fit.optimum(LRS, np.where(CURVE > 2, nan, CURVE))",
        "fit.optimum(LRS, np.where(CURVE > 2, inf, CURVE), cap=inf)",
        "fit.optimum(LRS, CURVE, diverged=np.zeros(CURVE.shape, int))",
        "fit.power_law([2, 4, 8, 16], [0.1, None, 0.3, 0.4], stderr=[nan, 0.1, 0.1, nan])",
        "fit.predictions(2, 0.1, 4, path_sums={2: 10**400, 4: None}, calibrated={'c': {2: nan}})",
        "fit.finite_size([1, 2, 3, 4], [inf, inf, inf, 5], [4, 2, 1.5, 1], terms=('v',)).predict(inf, inf, inf)",
        "theory.lazy_predictor(KX, Y, 0.1, times=[0.0, inf], memory_limit=inf)",
        "theory.lazy_kernels(KX, 2.0, beta=-1, memory_limit=inf)",
        "dm.parameterization('mup', base_width=64.0, base_depth=np.int64(2), alpha=np.float32(0.5))",
        "dm.optimizer(P, SPECS, 'adam', jnp.float32(0.1), b1=np.float32(0.9), weight_decay=lambda step: nan)",
    ],
)
def test_what_may_be_infinite_or_missing(text, names):
    assert eval(text, names) is not None


def test_a_kernel_of_a_diverged_network_has_no_distance(names):
    for text in ("dm.distance(KX * nan, KX)", "dm.alignment(KX, 0 * KX)", "dm.alignment(KX * nan, KX)"):
        assert math.isnan(eval(text, names)), text


def test_out_of_memory(call, monkeypatch):  # noqa: F811
    """It is one line; another error of JAX's is none of the user's, and stays as it is."""

    def train(message):
        def fails(*arguments):
            raise jax.errors.JaxRuntimeError(message)

        monkeypatch.setitem(verbs.VERBS, "train", fails)
        return call("train")

    done = train("RESOURCE_EXHAUSTED: Out of memory allocating 256000000000 bytes.")
    assert done.returncode == 2
    assert done.stderr.startswith("error: out of memory: choose a smaller model.width, model.depth or data.batch_size")
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        train("INTERNAL: a bug")


def test_a_flag_that_is_given_again_replaces(monkeypatch):
    """A list as a number does."""
    monkeypatch.chdir(ROOT)
    overrides = ["depths=(2,3)", "seeds=3", "depths=(4,)", "widths=(8,)", "widths=()", "seeds=5"]
    before = set(flags.FLAGS)
    try:
        parse_command(["main.py", *(f"--config.sweep.{text}" for text in overrides)])
        swept = from_config(flags.FLAGS.config).sweep
    finally:
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)
        flags.FLAGS.unparse_flags()
    assert (swept.depths, swept.widths, swept.seeds) == ((4,), (), 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["train", "--config=default:nofamily"], 2, "error: unknown model family 'nofamily'"),
        (["train", "--config=main.py"], 2, "error: AttributeError in the config file"),
        (["sweep", "--dry_run", "--config.sweep.axes=epochs=1e308,2"], 2, "error: epochs = 1e+308 does not fit"),
    ],
)
def test_a_process(arguments, status, message):
    done = subprocess.run([sys.executable, "main.py", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status
    assert message in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


ENDS = [0, 1, -1, 2, 3.0, 0.5, 10**400, -(2**63), math.nan, math.inf, -math.inf, 5e-324, 1.7e308]


def some_value(rng):
    """A value of any type: nothing that a config file could not have."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice(ENDS)
    if kind == 1:
        return struct.unpack("d", rng.randbytes(8))[0]
    if kind == 2:
        return rng.choice([-1, 1]) * rng.getrandbits(rng.randrange(1, 200))
    if kind == 3:
        return "".join(rng.choices("abc_ .*$\\(){}[],;='\"\n\x00é日0123456789e-+", k=rng.randrange(12)))
    if kind == 4:
        return rng.choice(
            [f"{rng.expovariate(1):.9f} steps", f"{rng.getrandbits(rng.choice([31, 60]))} epochs", "never", "none"]
        )
    if kind == 5:
        return tuple(some_value(rng) for _ in range(rng.randrange(3)))
    return rng.choice([None, True, False, {}, [], b"12", {"sgd": 1.0}, {"sgd": (-4.0, 4.0)}, [[]], set(), 1j])


def nested(values):
    """{"a.b": 1} as {"a": {"b": 1}}"""
    result = {}
    for name, value in values.items():
        *groups, last = name.split(".")
        node = result
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value
    return result


def written(settings):
    """{key: its value, as a config has it}"""
    values = {name: value_of(settings, name) for name in keys(settings.model.name)}
    return {name: str(value) if isinstance(value, Interval) else value for name, value in values.items()}


@pytest.mark.parametrize("family", MODELS)
def test_any_value_of_any_setting(family):
    """It is refused in one line, or gives settings that are the same after they were written as JSON and read."""
    rng, usual = random.Random(family), from_config(default.get_config(family))
    plain = written(usual)
    accepted, several = 0, {}
    for name in plain:
        for value in (
            *ENDS,
            "1234567.25 steps",
            *rng.sample(list(plain.values()), 3),
            *(some_value(rng) for _ in range(20)),
        ):
            changed = {**plain, name: value}
            try:
                settings = from_config(nested(changed))
            except SettingsError as error:
                several |= {name: value} if len(str(error).splitlines()) != 1 else {}
                continue
            accepted += 1
            read = json.loads(json.dumps(nested(written(settings))))
            assert from_config(read) == settings, (name, value)
    assert several == {}
    assert accepted > len(plain) / 4

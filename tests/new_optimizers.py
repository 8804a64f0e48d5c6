"""Rows that are added to the table of optimizers train by their own numbers, and a sweep and a check take them.

tests/test_settings.py runs this program: the rows must be there before depthmup.settings is imported.
"""

import jax
import numpy as np

from depthmup.rules import optim

MADE = {"mine": optim.OTHERS["lion"], "of_matrices": optim.OTHERS["muon"]}
OF = {"mine": "lion", "of_matrices": "muon"}  # dm.optimizer trains by these numbers
optim.OPTIMIZERS.update(MADE)
optim.OPTIONS.update({name: row.options for name, row in MADE.items()})

from depthmup.cli.write_config import default_config  # noqa: E402
from depthmup.settings import from_config, put  # noqa: E402
from depthmup.train.check import probe_at  # noqa: E402
from depthmup.trials.config_study import ConfigStudy  # noqa: E402
from depthmup.trials.plan import grid_trials  # noqa: E402

written: dict = {}
exec(default_config(), written)  # what `make configs` writes
config = written["get_config"]()
config.model.width = 64
config.sweep.update(depths=(2,), widths=(), seeds=1, parameterizations=("mup",), optimizers=tuple(MADE))
config.check.optimizers = tuple(MADE)
settings = from_config(config)
assert settings.sweep.log2_learning_rates["adam"] == (-12.0, -3.0)
planned = grid_trials(ConfigStudy(settings))
for name, row in MADE.items():
    of_name = [trial for trial in planned if trial.point.optimizer == name]
    rates = [trial.learning_rate for trial in of_name]
    assert (min(rates), max(rates)) == tuple(2.0**end for end in row.grid)
    point = of_name[0].point
    defaults = {option: value for option, value in row.options.items() if option != "nesterov"}
    numbers = {"momentum": 0.9, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.0} | defaults
    hyper = point.hyper(2.0**-10, 0)
    assert hyper.optimizer == point.task.hyper(settings.parameterization.build(), 0.1).optimizer == numbers
    assert {option: point.leaves[f"optimizer.{option}"] for option in numbers} == numbers  # the columns of its rows

    task = point.task
    params = jax.jit(task.init)(hyper.arrays()).params
    grads = jax.tree.map(lambda w: np.random.default_rng(w.size).normal(size=w.shape).astype(np.float32), params)
    tx = task.transformation(hyper, 2.0**-10)
    p = task.counting_blocks(point.settings.parameterization.build())
    expected = optim.optimizer(p, task.specs, OF[name], 2.0**-10)
    updates, right = (jax.jit(t.update)(grads, t.init(params), params)[0] for t in (tx, expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), updates, right)
    probe = probe_at(settings, name, 64, 4)
    assert probe.hyper(next(iter(probe.groups)), 0).learning_rate == 2.0**row.check

changed = put(settings, {"optimizer.name": "mine", "optimizer.b2": 0.95}).optimizer
assert changed.numbers["b2"] == 0.95
assert put(settings, {"optimizer.name": "adam"}).optimizer.numbers["b2"] == 0.999
print("as they should be")

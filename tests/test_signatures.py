"""Types of public signatures: an editor completes what is accepted, and no other name."""

import inspect
from typing import get_args

import depthmup as dm
from depthmup import activations, losses, schedules
from depthmup.measure.maximal_update import AVERAGES, Average
from depthmup.models import layers, stack
from depthmup.own_model import Setup
from depthmup.rules import optim
from depthmup.rules.parameterization import ParameterizationOptions
from depthmup.tune import model_sweep, target
from depthmup.tune.options import Hyperparameter, SweepOptions, TuneOptions


def keywords(*functions):
    """The names of the arguments of functions that take them by keyword alone."""
    parameters = [p for function in functions for p in inspect.signature(function).parameters.values()]
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


HYPERPARAMETERS = {"weight_decay", "mask"}.union(*optim.OPTIONS.values())


def test_types_of_a_sweep_are_what_it_takes():
    taken = keywords(model_sweep.study_of, model_sweep.sweep_model) | HYPERPARAMETERS
    assert SweepOptions.__annotations__.keys() == taken - keywords(Setup.sweep)


def test_types_of_a_tune_are_what_it_takes():
    chosen = {"widths", "depths", "sizes", "fixed", "adaptive", "learning_rates"}  # by the tune itself
    taken = keywords(model_sweep.study_of, target.tune_target) | HYPERPARAMETERS
    assert TuneOptions.__annotations__.keys() == taken - chosen - keywords(Setup.tune) - {"optimizer"}
    defaults = {name: default for options in optim.OPTIONS.values() for name, default in options.items()}
    numbers = {name for name, default in defaults.items() if isinstance(default, float)}
    assert {*get_args(Hyperparameter)} == {"learning_rate", "weight_decay", *numbers}


def test_types_of_setup_are_what_it_takes():
    of_base = {"base_width", "base_depth"}
    assert ParameterizationOptions.__annotations__.keys() == keywords(dm.parameterization) - of_base


def test_names_of_tables_are_types():
    for names, table in (
        (activations.ActivationName, activations.ACTIVATIONS),
        (schedules.Schedule, schedules.SCHEDULES),
        (losses.LossName, losses.LOSSES),
        (optim.OptimizerName, optim.OPTIONS),
        (Average, AVERAGES),
        (layers.DTypeName, layers.DTYPES),
        (stack.RematKeeps, stack.REMAT_KEEPS),
    ):
        assert get_args(names) == tuple(table)

"""What a sweep can vary: any key of the config that decides a training."""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import re
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from depthmup.convert import convert
from depthmup.models import MODELS
from depthmup.parameterization import unknown
from depthmup.settings import DECIDES_NOTHING, ModelSettings, Settings, SettingsError

# Trials that differ in these alone share one compiled program: they are traced (train.step.Hyper).
TRACED = frozenset(
    (
        *(f"optimizer.{name}" for name in ("learning_rate", "momentum", "b1", "b2", "eps", "weight_decay")),
        *(f"parameterization.{name}" for name in ("name", "base_width", "base_depth", "base_head_dim", "alpha")),
        *(f"parameterization.{name}" for name in ("gamma0", "beta0", "lr_depth", "branch_init")),
        *("seed", "epochs", "warmup_epochs", "label_noise"),
    )
)
# Axes that have a key of their own.
OWN = {
    "parameterization.name": "sweep.parameterizations",
    "optimizer.name": "sweep.optimizers",
    "model.depth": "sweep.depths",
    "model.width": "sweep.widths",
    "seed": "sweep.seeds",
}
LEARNING_RATE = "optimizer.learning_rate"
ELSEWHERE = ("data.data_dir", "data.workers")  # where and how fast data is read
GRIDS: dict[str, Any] = {"grid": np.linspace, "log": np.geomspace}


def flat(settings: Settings) -> dict[str, Any]:
    """{config key: value} of every setting that decides what a training results in, as JSON has it."""
    result: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, ModelSettings):
            value = {"name": value.name, "width": value.width, "depth": value.depth, **value.options}
        elif dataclasses.is_dataclass(value):
            value = {field: getattr(value, field) for field in value.__dataclass_fields__}
        if isinstance(value, Mapping):
            for name, sub in value.items():
                add(f"{prefix}.{name}".strip("."), sub)
        elif prefix not in ELSEWHERE:
            result[prefix] = list(value) if isinstance(value, tuple) else value

    for field in Settings.__dataclass_fields__:
        if field not in (*DECIDES_NOTHING, "sweep"):
            add(field, getattr(settings, field))
    return result


def put(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings with other values of some keys of `flat`. Raises SettingsError if they do not go together."""
    changes: dict[str, Any] = {}
    for key, value in values.items():
        *rooms, name = key.split(".")
        node = changes
        for room in rooms:
            node = node.setdefault(room, {})
        node[name] = value
    return _changed(settings, changes)


def column(key: str) -> str:
    """The name that a config key has in a row: its last word, where that says enough."""
    named = {"loss": "loss_function", "data.seed": "data_seed"}
    if key.endswith(".name"):
        return key.removesuffix(".name")
    return named.get(key) or key.replace("data.augment.", "augment_").rpartition(".")[2]


def parse(settings: Settings) -> dict[str, tuple[Any, ...]]:
    """The axes of `sweep.axes`, each with its values.

    "key = value, value; key = grid(low, high, points); key = log(low, high, points)". Raises SettingsError for a key
    that does not exist or decides nothing, an axis that has a key of its own or is given twice, and values that are
    none, are given twice or are of another type than the setting.
    """
    known = flat(settings)
    result: dict[str, tuple[Any, ...]] = {}
    for text in filter(str.strip, settings.sweep.axes.split(";")):
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals:
            raise SettingsError(f"sweep.axes: {text.strip()!r} must be 'key = values'")
        if key in OWN:
            raise SettingsError(f"sweep.axes: {key} is an axis already, that of {OWN[key]}: give its values there")
        if key == "model.name":
            raise SettingsError("sweep.axes: families of models have other settings: run a sweep for each")
        if key.split(".")[0] in DECIDES_NOTHING or key in ELSEWHERE:
            raise SettingsError(f"sweep.axes: {key} decides nothing that a training results in")
        if key not in known:
            words = [k for k in known if k.rpartition(".")[2] == key]
            if not words:
                raise SettingsError(f"sweep.axes: {unknown('axis', key, known)}")
            raise SettingsError(f"sweep.axes: unknown axis {key!r}; did you mean {' or '.join(map(repr, words))}?")
        if key in result:
            raise SettingsError(f"sweep.axes: {key} is given twice")
        kind = _kind(settings, key.split("."))
        try:
            result[key] = tuple(convert(kind, value, key, {}) for value in _values(values))
        except SettingsError as error:
            raise SettingsError(f"sweep.axes: {error}") from error
        except (ValueError, SyntaxError) as error:
            raise SettingsError(
                f"sweep.axes: {key} has values that cannot be read, {values!r}: quote a word"
            ) from error
        if not result[key] or len(set(result[key])) != len(result[key]):
            raise SettingsError(f"sweep.axes: {key} has {'a value twice' if result[key] else 'no value'}: {values!r}")
    return result


def _changed(node: Any, changes: Mapping[str, Any]) -> Any:
    """All at once: a setting may be wrong with the old value of another."""
    if isinstance(node, ModelSettings):
        options = {name: value for name, value in changes.items() if name in node.options}
        own = {name: value for name, value in changes.items() if name not in options}
        return dataclasses.replace(node, options={**node.options, **options}, **own)
    inner = {n: _changed(getattr(node, n), v) if isinstance(v, dict) else v for n, v in changes.items()}
    return dataclasses.replace(node, **inner)


def _kind(settings: Any, path: list[str]) -> Any:
    """The type of a setting."""
    node = settings
    for name in path[:-1]:
        node = getattr(node, name)
    if isinstance(node, ModelSettings) and path[-1] in node.options:
        return MODELS[node.name].option_types()[path[-1]]
    kind: Any = type(node)
    return _hints(kind)[path[-1]]


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _values(text: str) -> list[Any]:
    """The values of one axis. Raises SettingsError, ValueError or SyntaxError for what is no list of them."""
    found = re.fullmatch(r"(grid|log)\((.*)\)", text)
    if not found:
        words = re.sub(r"(?<![\w.'\"])([A-Za-z_][\w./]*)(?![\w'\"])", _quoted, text)
        return list(ast.literal_eval(f"[{words}]"))
    arguments = ast.literal_eval(f"[{found[2]}]")
    if (
        len(arguments) != 3
        or not all(isinstance(a, int | float) for a in arguments)
        or int(arguments[2]) != arguments[2]
    ):
        raise SettingsError(f"{text!r} must be {found[1]}(low, high, points)")
    low, high, points = arguments
    if points < 2 or not low < high or (found[1] == "log" and low <= 0):
        raise SettingsError(f"{text!r} needs low < high, two points or more, and for log a low above 0")
    values = [float(value) for value in GRIDS[found[1]](low, high, int(points))]
    whole = isinstance(low, int) and isinstance(high, int) and all(math.isclose(v, round(v)) for v in values)
    return [round(value) for value in values] if whole else values


def _quoted(word: re.Match[str]) -> str:
    return word[1] if word[1] in ("True", "False", "None") else repr(word[1])

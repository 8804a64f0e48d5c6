"""What a table of models that are not ours says of each: how it is set up, and what setup must make of it."""

import ast
import dataclasses
import fnmatch
import functools
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import depthmup as dm
from tests.foreign.roles import roles

Expected = Mapping[str, str]  # {glob of paths: role with its place}; the last glob that matches a path counts
REFUSALS = (dm.SpecError, dm.ForwardError)


TOKENS = np.arange(12).reshape(2, 6)  # (batch, length), of a vocabulary of 20


@dataclasses.dataclass(frozen=True, eq=False)
class Foreign:
    """A model that is not ours.

    factory, inputs, options: of `dm.setup`; options are its other arguments.
    roles: expected of all parameters, by hand; a function of depth where the paths of a role depend on it.
    asks: whether setup may raise an error that prints overrides, which must be right as they are printed.
    error: pattern of the error that setup must raise instead, with the edit that it must name.
    queries: globs of the parameters whose first step falls with width, because the attention factor goes as
      1/head_dim: those of queries and keys, and of norms in front of them; or because the logits are cosines, or few
      numbers lie between them and the features.
    loss: the logits that the slopes are measured with, such as those of one head.
    """

    factory: Callable[..., Any]
    inputs: tuple[Any, ...]
    roles: Expected | Callable[[int], Expected] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    asks: bool = False
    error: str = ""
    queries: tuple[str, ...] = ()
    loss: Callable[[Any], Any] = lambda logits: logits

    @functools.cached_property
    def setup(self) -> tuple[dm.Setup, dict[str, str]]:
        """At width 64 and depth 4, and the overrides that it took: those that the error prints, if it may ask."""
        try:
            return self.set_up(), {}
        except REFUSALS as error:
            if not self.asks:
                raise
            overrides = printed(str(error))
        return self.set_up(overrides=overrides), overrides

    def set_up(self, **options: Any) -> dm.Setup:
        """Warnings are errors, but that of parts of fixed size."""
        shape = {"width": 64, "depth": 4, "base": (32, 2)}
        settings = {"name": "depth_mup", **shape, "fan_in_init": False, **self.options, **options}
        with warnings.catch_warnings():
            warnings.simplefilter("error", dm.SetupWarning)
            warnings.filterwarnings("ignore", ".* joins a part of fixed size to one that grows", dm.SetupWarning)
            return dm.setup(settings.pop("name"), self.factory, *self.inputs, **settings)

    def expected(self, depth: int) -> Expected:
        return self.roles(depth) if callable(self.roles) else self.roles


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def printed(message: str) -> dict[str, str]:
    """The overrides that an error prints to paste: one literal."""
    literals = re.findall(r"(?s)overrides=(\{.*?\})", message)
    assert len(literals) == 1, f"one literal to paste was expected:\n{message}"
    return ast.literal_eval(literals[0])


def differences(m: dm.Setup, expected: Expected) -> list[str]:
    """A line for each parameter that has another role than expected, and for each glob that matches none."""
    actual = roles(m.specs)
    lines = [f"{glob!r} matches no parameter" for glob in expected if not fnmatch.filter(actual, glob)]
    for path, role in actual.items():
        matching = [expected[glob] for glob in expected if fnmatch.fnmatchcase(path, glob)]
        last = matching[-1] if matching else "no role"
        if role != last:
            lines.append(f"{path} is {role}, expected {last}")
    return lines


def wrong(model: Foreign) -> list[str]:
    """The differences at each shape. Overrides that were pasted must hold at every one: depth 8 and width 128, too."""
    m, overrides = model.setup
    shapes = ((64, 4), (64, 8), (128, 2)) if overrides else ((64, 4),)
    return [f"{width} x {depth}: {line}" for width, depth in shapes
            for line in differences(m.at(width, depth), model.expected(depth))]  # fmt: skip


def blocks(*globs: str, matrix: str = "kernel") -> dict[str, str]:
    """The roles of parameters in branches: a matrix, by the end of its path, is hidden, all others are vectors."""
    return {f"{glob}{end}": role for glob in globs for end, role in (("", "branch/vector"), (matrix, "branch/hidden"))}


def trunk(**layers: str) -> dict[str, str]:
    """The roles of layers outside the branches, by the role of their matrix: a bias beside a readout is a scalar, all
    other parameters are vectors."""
    by_glob = {}
    for layer, role in layers.items():
        by_glob[f"{layer}/*"] = "scalar" if role == "readout" else "vector"
        if role != "vector":
            by_glob[f"{layer}/[kwe]*"] = role  # kernel, weight, embedding
    return by_glob

"""Tune hyperparameters once on a small, shallow network; train the wide, deep one with the same values.

The public names are those of api.py (docs/design.md). They need jax, flax, optax and numpy only.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depthmup.api import *  # noqa: F403

__version__ = "0.1.0"


class _Package(ModuleType):
    """This package. A name is imported when it is first used, so that the command answers --help without JAX.

    Python makes each imported module an attribute of its package. Three modules have the name of the public function
    that they hold: here the function is the attribute. A function `__getattr__` of this module could not do that.
    """

    _FUNCTIONS = ("convert", "explain", "parameterization")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module 'depthmup' has no attribute {name!r}")
        if importlib.util.find_spec(f"depthmup.{name}"):
            setattr(self, name, importlib.import_module(f"depthmup.{name}"))
        else:
            setattr(self, name, getattr(importlib.import_module("depthmup.api"), name))
        return vars(self)[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._FUNCTIONS and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        return {*super().__dir__(), *self.__all__}


sys.modules[__name__].__class__ = _Package

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
    """This package. A name is imported when it is first used, so that the command answers --help before JAX is there.

    Python makes a module an attribute of its package once it is imported. Three modules have the name of the public
    function that they hold: the function is the attribute.
    """

    _FUNCTIONS = ("convert", "explain", "parameterization")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module 'depthmup' has no attribute {name!r}")
        place = f"depthmup.{name}" if importlib.util.find_spec(f"depthmup.{name}") else "depthmup.api"
        module = importlib.import_module(place)
        public = place == "depthmup.api" or name in self._FUNCTIONS
        vars(self)[name] = getattr(module, name) if public else module
        return vars(self)[name]

    def __setattr__(self, name: str, value: Any) -> None:
        is_module = isinstance(value, ModuleType)
        super().__setattr__(name, getattr(value, name) if is_module and name in self._FUNCTIONS else value)

    def __dir__(self) -> Iterable[str]:
        return {*super().__dir__(), *self.__all__}


sys.modules[__name__].__class__ = _Package

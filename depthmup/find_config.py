"""Where --config (and --diff) finds its file: at a path, or under the name of a config that ships with depthmup.

The shipped configs are configs/ at the root of the repository. The wheel carries that folder as depthmup/configs, where
setup.py puts it when the wheel is built: the files have one home, and no package called `configs`, which could be
anybody's, lands in site-packages. Configs say `from configs import default` in either place, so `paths` tells Python
which folder `configs` is before one of them is read.
"""

from __future__ import annotations

import difflib
import sys
import types
from collections.abc import Sequence
from pathlib import Path

_INSIDE = Path(__file__).with_name("configs")
SHIPPED = _INSIDE if _INSIDE.is_dir() else _INSIDE.parents[1] / "configs"  # in the wheel; in the repository


def config_names() -> list[str]:
    """The names of the shipped configs."""
    return sorted(path.stem for path in SHIPPED.glob("*.py"))


def find(value: str) -> str:
    """The value of --config with a path in the place of a name: digits -> .../configs/digits.py.

    What stands behind a colon, get_config's argument, stays. A path stays as it is.

    Raises ValueError if no shipped config has that name, or no file that path.
    """
    config, colon, argument = value.partition(":")
    path = Path(config)
    if config == path.stem:
        if config not in config_names():
            raise ValueError(f"unknown config {config!r}{_near(config)}; the path of a file ends in .py")
        path = SHIPPED / f"{config}.py"
    elif not path.is_file():
        raise ValueError(f"there is no config file {config}{_near(path.stem)}")
    return f"{path}{colon}{argument}"


def _near(name: str) -> str:
    """A hint for an unknown name: shipped configs with similar names, and where all of them are listed."""
    near = difflib.get_close_matches(name, config_names(), n=3, cutoff=0.5)
    meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
    return f"{meant} --help lists all that ship"


def paths(argv: Sequence[str]) -> list[str]:
    """A command's arguments, with paths in the place of configs' names, ready for ml_collections.

    From then on `configs` is, for Python, the folder of the shipped configs. A config that itself lies in a folder
    called configs finds its neighbours there first.

    Raises ValueError as `find` does.
    """
    argv, folders = list(argv), [str(SHIPPED)]
    for i, argument in enumerate(argv):
        flag, equals, value = argument.partition("=")
        if flag.removeprefix("-").removeprefix("-") in ("config", "diff") and (equals or argv[i + 1 :]):
            if equals:
                resolved = find(value)
                argv[i] = f"{flag}={resolved}"
            else:
                argv[i + 1] = resolved = find(argv[i + 1])
            folder = Path(resolved.partition(":")[0]).absolute().parent
            folders = [str(folder)] * (folder.name == "configs") + folders
    # In sys.modules, not on sys.path: whatever else is called configs there, this is the folder that is meant.
    package = sys.modules.setdefault("configs", types.ModuleType("configs"))
    package.__path__ = folders
    return argv

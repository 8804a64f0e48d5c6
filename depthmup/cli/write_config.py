"""configs/default.py and docs/settings.md, written from the declarations of the settings.

python -m depthmup.cli.write_config > configs/default.py
python -m depthmup.cli.write_config docs > docs/settings.md
"""

from __future__ import annotations

import collections
import re
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from depthmup.declare import Key, declared
from depthmup.models import MODELS, Model
from depthmup.settings import (
    CHECKS,
    DATA,
    MODEL_NAME,
    CheckSettings,
    DataSettings,
    Interval,
    Settings,
    is_group,
    keys,
)

WIDTH = 120  # columns of configs/default.py
HEADER = """\"\"\"All settings; default:FAMILY is another family of models: default:vit.

python main.py explain --config=configs/default.py
python main.py explain --config=configs/default.py:vit

Other configs override this one: they add no key.

`make configs` writes this file from the declarations of settings: settings.py, training_settings.py, models/, data/.
\"\"\"

from ml_collections import config_dict

# The families of models and what only they have; their classes in depthmup/models say more.
FAMILIES: dict[str, dict] = dict("""
CHECKED = """)
# What main.py check does where it is not as for the residual MLP, which has the values of config.check below.
CHECKS: dict[str, dict] = dict("""
DATA_SETS = """)
# The data set of a family that does not take images.
DATA: dict[str, dict] = dict("""
GET_CONFIG = """)


def get_config(model: str = "residual_mlp") -> config_dict.ConfigDict:
    \"\"\"model: a family; give it behind a colon, --config=configs/default.py:vit.\"\"\"
    if model not in FAMILIES:
        raise ValueError(f"unknown model family {model!r} behind the colon of --config (known: {', '.join(FAMILIES)})")
    config = config_dict.ConfigDict()

    config.model = dict(
        name=model,"""
RETURN = """
    for key, value in FAMILIES[model].items():  # a placeholder of the table would be one of all configs of a process
        is_placeholder = isinstance(value, config_dict.FieldReference)
        config.model[key] = config_dict.placeholder(value.get_type()) if is_placeholder else value
    config.data.update(DATA.get(model, {}))
    config.check.update(CHECKS.get(model, {}))
    return config
"""
PAGE = """# Settings

Every key of a config. The default shows the type: `2` takes a whole number, `2.0` any number, brackets a list. Where
it is unset or empty, "values" has the type. A number out of bounds is an error that names them.

What a change of a key brings:

- **result**: another result, no new compilation: trials of a sweep that differ in such keys alone share a program.
- **program**: another result, and a program of its own.
- **none**: the same result, but for the order of sums where devices share a batch.

A config has [four optimizers](#optimizer). `m.optimizer` has more ([Your own model](your-model.md#other-optimizers)).
"""
NAMED = re.compile(r"docs/([\w-]+\.md)")  # a page named in a meaning, which is a link on the page
TABLE = "| key and default | values | meaning |\n|---|---|---|"


def default_config() -> str:
    """The text of configs/default.py, formatted as ruff does it."""
    lines = [HEADER]
    for family, model in MODELS.items():
        lines += [f"    {family}=dict(  # {model.__name__}", *_assignments(_own(model), 8), "    ),"]
    lines += [CHECKED]
    lines += _changed(CHECKS, CheckSettings())
    lines += [DATA_SETS, *_changed(DATA, DataSettings())]
    lines += [GET_CONFIG, *_assignments(declared(Model), 8), "    )"]
    for name, k in declared(Settings).items():
        if is_group(k) and name != "model":
            head = ["", *_comment(k.meaning, 4), f"    config.{name} = dict("]
            lines += [*head, *_assignments(declared(k.kind), 8), "    )"]
        elif name != "model":
            lines += _commented(f"    config.{name} = {_python(k.default, k.kind)}", k)
    return "\n".join([*lines, RETURN])


def _changed(of_family: Mapping[str, Any], usual: Any) -> Iterator[str]:
    """`family=dict(key=value)` with the settings of each family that are not the usual ones."""
    for family, settings in of_family.items():
        values = {name: getattr(settings, name) for name in declared(type(usual))}
        changed = {name: value for name, value in values.items() if value != getattr(usual, name)}
        yield from (f"    {family}=dict(", *(f"        {name}={_python(v)}," for name, v in changed.items()), "    ),")


def _own(model: type[Model]) -> dict[str, Key]:
    """The attributes that a family declares itself."""
    return {name: k for name, k in declared(model).items() if k != declared(Model).get(name)}


def _assignments(declarations: Mapping[str, Key], indent: int) -> Iterator[str]:
    """`name=default,  # comment` for each key."""
    space = " " * indent
    for name, k in declarations.items():
        if is_group(k):
            yield from _comment(k.meaning, indent)
            yield from (f"{space}{name}=dict(", *_assignments(declared(k.kind), indent + 4), f"{space}),")
        else:
            yield from _commented(f"{space}{name}={_python(k.default, k.kind)},", k)


def _commented(code: str, k: Key) -> list[str]:
    """A line of code with its comment behind it, or above it where the line would be too long."""
    together = f"{code}  # {k.words}"
    if not k.words:
        return [code]
    return [together] if len(together) <= WIDTH else [*_comment(k.words, len(code) - len(code.lstrip())), code]


def _comment(text: str, indent: int) -> list[str]:
    start = " " * indent + "# "
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False)


def _python(value: Any, kind: Any = None) -> str:
    """A default as an expression of a config."""
    if value is None:
        return f"config_dict.placeholder({typing.get_args(kind)[0].__name__})"
    if isinstance(value, Mapping):
        return f"dict({', '.join(f'{name}={_python(entry)}' for name, entry in value.items())})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_python, value))}{',' * (len(value) == 1)})"
    if isinstance(value, str | Interval):
        return f'"{value}"'
    return f"{value:_}" if type(value) is int else repr(value)


def settings_page() -> str:
    """The text of docs/settings.md: a table for each group of keys."""
    model = {"name": MODEL_NAME, **declared(Model)}
    groups = {"model": model} | {f"model, {family}": _own(kind) for family, kind in MODELS.items()}
    for name, k in keys().items():
        group, _, last = name.rpartition(".")
        if group != "model":
            groups.setdefault(group, {})[last] = k
    lines = [PAGE]
    for group, declarations in groups.items():
        lines += [f"## {group or 'Keys outside groups'}", "", _changes(declarations), "", TABLE]
        for name, k in declarations.items():
            default = f"`{name}`, unset" if k.default is None else f"`{name}={_python(k.default)}`"
            meaning = NAMED.sub(r"[\1](\1)", k.meaning.replace(" | ", ", "))
            lines += ["| " + " | ".join((default, _values(k), meaning)) + " |"]
        lines += [""]
    return "\n".join(lines)


def _changes(declarations: Mapping[str, Key]) -> str:
    """What a change of the keys of a table brings: the usual effect, then the keys that have another one."""
    of_key = {name: "result" if k.traced else "program" if k.decides else "none" for name, k in declarations.items()}
    effects = [effect for effect, _ in collections.Counter(of_key.values()).most_common()]
    others = (
        f"{effect} of {', '.join(f'`{name}`' for name, of in of_key.items() if of == effect)}" for effect in effects[1:]
    )
    return f"A change: {'; '.join([effects[0], *others])}."


def _values(k: Key) -> str:
    """The choices of a key, or its type where the default does not show it. Bounds are in the message of an error."""
    untold = k.default is None or k.default == ()
    return ", ".join(k.choices or [kind.__name__ for kind in typing.get_args(k.kind)[:1] if untold])


if __name__ == "__main__":
    print(settings_page() if sys.argv[1:] == ["docs"] else default_config(), end="")

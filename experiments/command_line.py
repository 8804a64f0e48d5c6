"""Command lines of experiments."""

from __future__ import annotations

import argparse
from collections.abc import Collection


def parser(module: str, doc: str | None, what: str = "", known: Collection[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command `python -m module`, whose help is `doc`.

    what: such as "case": then the command takes names of `known` as the argument `cases`, by default all.
    """

    def name(argument: str) -> str:
        if argument not in known:
            raise argparse.ArgumentTypeError(f"no {what} {argument}; there are {', '.join(known)}")
        return argument

    result = argparse.ArgumentParser(
        prog=f"python -m {module}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if not what:
        return result
    words = f"of {', '.join(known)}; none: all"
    result.add_argument(f"{what}s", nargs="*", metavar=what.upper(), type=name, default=[*known], help=words)
    return result

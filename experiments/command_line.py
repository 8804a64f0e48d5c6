"""Command lines of experiments that take names: of cases, kinds, networks or figures."""

from __future__ import annotations

import argparse
from collections.abc import Collection


def parser(module: str, doc: str | None, what: str, known: Collection[str]) -> argparse.ArgumentParser:
    """Its positional arguments are names of `known`, such as the "cases" for "case"; none: all."""

    def name(argument: str) -> str:
        if argument not in known:
            raise argparse.ArgumentTypeError(f"no {what} {argument}; there are {', '.join(known)}")
        return argument

    result = argparse.ArgumentParser(
        prog=f"python -m {module}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = f"of {', '.join(known)}; none: all"
    result.add_argument(f"{what}s", nargs="*", metavar=what.upper(), type=name, default=[*known], help=words)
    return result

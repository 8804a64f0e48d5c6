"""Trains what is missing and draws docs/language.md; the package's docstring says how."""

import argparse

from depthmup.backend import prepare_cpu
from experiments.language import page
from experiments.language.study import CASES, SCALES, train

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m experiments.language", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--scale", choices=SCALES, default="demo")
    parser.add_argument("--depths", type=int, nargs="+", help="train only these; all by default")
    parser.add_argument("--draw", action="store_true", help="draw the page from the rows that are there, train nothing")
    given = parser.parse_args()
    if unknown := set(given.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    prepare_cpu()
    for name in () if given.draw else given.cases or CASES:
        train(name, given.scale, depths=given.depths)
    print(page.write())

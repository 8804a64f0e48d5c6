"""Trains the sweeps of a scale, or commits their rows; the package's docstring says how."""

import argparse

from depthmup.backend import prepare_cpu
from experiments.language import sweeps

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m experiments.language", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(sweeps.CASES)}; all by default")
    parser.add_argument("--scale", choices=sweeps.SCALES, default="demo")
    parser.add_argument("--publish", action="store_true", help="commit the rows to docs/results/, train nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - set(sweeps.CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(sweeps.CASES)}")
    prepare_cpu()
    if arguments.publish:
        print(sweeps.publish(arguments.scale))
    else:
        for name in arguments.cases or sweeps.CASES:
            print(sweeps.train(name, arguments.scale))

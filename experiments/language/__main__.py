"""Trains the sweeps of a scale, or commits their rows; the package's docstring says how."""

from depthmup.backend import prepare_cpu
from experiments import command_line
from experiments.language import sweeps

if __name__ == "__main__":
    parser = command_line.parser("experiments.language", __doc__, "case", sweeps.CASES)
    parser.add_argument("--scale", choices=sweeps.SCALES, default="demo")
    parser.add_argument("--publish", action="store_true", help="commit the rows to docs/results/, train nothing")
    arguments = parser.parse_args()
    prepare_cpu()
    if arguments.publish:
        print(sweeps.publish(arguments.scale))
    else:
        for name in arguments.cases:
            print(sweeps.train(name, arguments.scale))

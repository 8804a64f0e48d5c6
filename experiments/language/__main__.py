"""Trains the sweeps and writes their rows; the package's docstring says how."""

from depthmup.backend import prepare_cpu
from experiments import command_line, language
from experiments.language import page, sweeps
from experiments.published import replace

if __name__ == "__main__":
    cases = command_line.parser("experiments.language", language.__doc__, "case", sweeps.CASES).parse_args().cases
    prepare_cpu()
    for case in cases:
        replace(sweeps.ROWS, sweeps.train(case), ["optimizer", "parameterization"])
    print(page.tables())

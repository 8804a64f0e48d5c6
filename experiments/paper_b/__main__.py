"""Trains and draws the figures of the AM-muP paper: `experiments.figures.command` says how."""

from depthmup.backend import prepare_cpu
from experiments.figures import command
from experiments.paper_b import PAPER

if __name__ == "__main__":
    prepare_cpu()
    command.main(PAPER)

"""Sweeps whose groups an executor's workers train: the rows of one process, bit for bit."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from depthmup.trials.engine import train
from tests import tiny

SMALL = dict(sweep__optimizers=("sgd",), sweep__widths=(), sweep__at_once=9)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Rows of one process."""
    return train(tiny.study(**SMALL), tmp_path_factory.mktemp("alone"), progress=False)


def test_threads(alone, tmp_path):
    with ThreadPoolExecutor(2) as executor:
        assert train(tiny.study(**SMALL), tmp_path, executor=executor, progress=False) == alone


def test_processes(alone, tmp_path):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        assert train(tiny.study(**SMALL), tmp_path, executor=executor, progress=True) == alone

"""The sweeps of configs/ whose rows are committed, besides those of the papers' figures."""

from __future__ import annotations

from configs import patches16_simple_resnet, patches16_vit, transfer
from depthmup.settings import Settings, from_config
from experiments import published
from experiments.published import RESULTS, Sweep

PUBLISHED = {
    "digits_transfer": transfer.get_config,
    "patches16_simple_resnet": patches16_simple_resnet.get_config,
    "patches16_vit": patches16_vit.get_config,
}


def settings_of(name: str) -> Settings:
    return from_config(PUBLISHED[name]())


def read(name: str) -> Sweep:
    """The published sweep. Raises ValueError if its rows were computed with other settings than its config has."""
    return published.read(RESULTS / name, settings_of(name))

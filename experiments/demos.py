"""The sweeps of configs/ whose rows are committed, besides those of the papers' figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from configs import digits, patches16_simple_resnet, patches16_vit, transfer
from depthmup.settings import Settings, from_config
from experiments import published
from experiments.published import RESULTS, Sweep


class Published(NamedTuple):
    """A sweep whose rows are committed. changed: what differs from the config's values.

    pictures: {name of a picture of the report: its file under docs/images}.
    """

    config: Callable[[], Any]
    changed: Mapping[str, Any] = {}
    pictures: Mapping[str, str] = {}


def _pictures(prefix: str = "") -> dict[str, str]:
    return {name: f"{prefix}{name}.png" for name in ("loss_over_depth", "optimum_over_depth")}


PUBLISHED = {
    "digits_transfer": Published(transfer.get_config, pictures=_pictures()),
    "digits_measured": Published(
        digits.get_config,
        {
            "sweep.seeds": 2,
            "sweep.depths": (2, 4, 8),
            "sweep.widths": (),
            "sweep.optimizers": ("sgd",),
            "sweep.measure": ("updates", "sharpness", "kernels"),
        },
    ),
    "patches16_simple_resnet": Published(patches16_simple_resnet.get_config, pictures=_pictures("simple_resnet_")),
    "patches16_vit": Published(patches16_vit.get_config, pictures=_pictures("vit_")),
}


def settings_of(name: str) -> Settings:
    config = PUBLISHED[name].config()
    config.update_from_flattened_dict(dict(PUBLISHED[name].changed))
    return from_config(config)


def read(name: str) -> Sweep:
    """The published sweep. Raises ValueError if its rows were computed with other settings than its config has."""
    return published.read(RESULTS / name, settings_of(name))

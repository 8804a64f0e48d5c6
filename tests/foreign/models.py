"""All models of the table, by name."""

from tests.foreign import (
    conditioned,
    convolutional,
    heads,
    queries,
    recurrent,
    repeated,
    stacked,
    streams,
    structures,
    transformers,
)

KINDS = (
    conditioned,
    transformers,
    queries,
    recurrent,
    convolutional,
    heads,
    repeated,
    stacked,
    streams,
    structures,
)
MODELS = {name: model for kind in KINDS for name, model in kind.MODELS.items()}

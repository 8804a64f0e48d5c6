"""All models of the table, by name."""

from tests.foreign import (
    conditioned,
    convolutional,
    heads,
    queries,
    recurrent,
    stacked,
    streams,
    structures,
    transformers,
)

MODELS = {
    name: model
    for kind in (conditioned, transformers, queries, recurrent, convolutional, heads, stacked, streams, structures)
    for name, model in kind.MODELS.items()
}

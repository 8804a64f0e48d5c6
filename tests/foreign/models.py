"""All models of the table, by name."""

from tests.foreign import conditioned, convolutional, heads, recurrent, structures, transformers

MODELS = {
    name: model
    for kind in (conditioned, transformers, recurrent, convolutional, heads, structures)
    for name, model in kind.MODELS.items()
}

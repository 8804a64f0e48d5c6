"""An extension of griffe: text in angle brackets and globs of docstrings are shown as they stand."""

import re

ENTITIES = {"<": "&lt;", "*": "&#42;"}
MARKUP = re.compile(r"<(?=[A-Za-z])|(?<=/)\*|\*(?=/)")


def escaped(text):
    """With each of MARKUP that is in no span of code as an entity."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if i % 2 else MARKUP.sub(lambda match: ENTITIES[match[0]], part) for i, part in enumerate(parts)
    )


try:
    import griffe
except ImportError:  # tests have none
    pass
else:

    class Escape(griffe.Extension):
        """Acts on each object that has a docstring."""

        def on_object(self, *, obj, **_):
            if obj.docstring:
                obj.docstring.value = escaped(obj.docstring.value)

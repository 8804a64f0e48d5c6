"""What the tests of both papers' figures share."""

import importlib
import re
from pathlib import Path

from experiments.figures import command, figure, page


def header(paper, name):
    """The head of the one module that has the command of this figure."""
    package = importlib.import_module(f"experiments.{paper.name}")
    modules = (f"{package.__name__}.{path.stem}" for path in Path(package.__file__).parent.glob("[a-z]*.py"))
    heads = (importlib.import_module(module).__doc__ for module in modules)
    (docstring,) = (head for head in heads if re.search(rf"{package.__name__} (\S+ )*{name}( \S+)* --data=DIR", head))
    return docstring


def drawn(paper, sweeps, folder, monkeypatch):
    """Draw them into a folder; the text of the page, which has a section for each figure and pictures that exist."""
    monkeypatch.setattr(page, "PAPERS", (paper,))
    monkeypatch.setattr(page, "read", lambda _: sweeps)
    monkeypatch.setattr(page, "PAGE", folder / "results.md")
    monkeypatch.setattr(figure, "IMAGES", folder / "images")
    command.draw(paper)
    text = (folder / "results.md").read_text()
    assert "unfinished" not in text
    for one in paper.figures.values():
        assert f"### {page.title(one)}\n" in text
        one.printed({name: sweeps[name] for name in one.sweeps})
    for picture in re.findall(rf"\]\((images/{paper.name}/.*?)\)", text.split("\n## ", 1)[1]):
        assert (folder / picture).exists(), picture
    return text

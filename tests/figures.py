"""The page and the pictures of a paper whose sweeps are all there."""

import re

from experiments.figures import command, figure, page


def drawn(paper, sweeps, folder, monkeypatch):
    """Draw them into a folder; the text of the page, which has a section for each figure and pictures that exist."""
    monkeypatch.setattr(page, "PAPERS", (paper,))
    monkeypatch.setattr(page, "read", lambda _: sweeps)
    monkeypatch.setattr(page, "PAGE", folder / "results.md")
    monkeypatch.setattr(figure, "IMAGES", folder / "images")
    command.draw(paper)
    text = (folder / "results.md").read_text()
    assert "not finished" not in text
    for one in paper.figures.values():
        assert f"### {page.title(one)}\n" in text
    for picture in re.findall(r"\]\((images/.*?)\)", text):
        assert (folder / picture).exists(), picture
    return text

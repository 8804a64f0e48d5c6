"""The Python of the documents runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(path, count):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.S)
    assert len(blocks) == count
    names = {}
    for block in blocks:
        exec(compile(block, path, "exec"), names)
    return names


@pytest.mark.slow
def test_readme(capsys):
    names = run("README.md", 1)
    assert names["updates"]["params"]["Dense_0"]["kernel"].shape == (64, 256)
    output = capsys.readouterr().out
    assert "completep at width 256 (base 64), depth 16 (base 4), adamw" in output
    assert "completep: ok" in output


@pytest.mark.slow
def test_your_model(capsys):
    names = run("docs/your-model.md", 4)
    assert names["value"] < 0.1  # of log 10 at the start
    assert names["logits"].shape == (8, 10)
    assert names["report"].ok, str(names["report"])
    assert names["deep"].learning_rate == pytest.approx(names["shallow"].learning_rate, rel=0.25)  # depth-muP: the same
    assert "depth_mup at width 256 (base 64), depth 16 (base 4)" in capsys.readouterr().out


@pytest.mark.slow
def test_limit():
    names = run("docs/limit.md", 1)
    assert names["rich"].predictions.shape == (10, 6)
    assert abs(names["lazy"].train[-1] - names["y"]).max() < 0.5


def test_the_readme_is_short():
    seen = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text())
    words = [word for word in seen.split() if any(map(str.isalnum, word))]
    assert len(words) <= 800

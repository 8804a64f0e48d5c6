"""The README's Python runs as it stands."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_python_blocks(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(blocks) == 2
    names = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert names["logits"].shape == (32, 10)
    assert names["report"].ok, str(names["report"])
    assert "depth_mup at width 256 (base 64), depth 16 (base 4), adamw" in capsys.readouterr().out

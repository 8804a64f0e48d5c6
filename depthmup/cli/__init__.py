"""The command: what `python main.py` and `depthmup` call."""

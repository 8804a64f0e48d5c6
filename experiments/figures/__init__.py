"""What the figures of both papers share: a figure (figure.py), docs/results.md (page.py), the command (command.py)."""

"""Specs from shapes alone (docs/design.md, "Specs from shapes")."""

from depthmup.infer.call import infer_specs

__all__ = ["infer_specs"]

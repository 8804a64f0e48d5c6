"""Which parameterization to take, by kind of model and optimizer: what `explain`, `grow` and every page say.

docs/guide/choose.md has the evidence for each row; tests/test_recommended.py reads the pages, examples and configs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from depthmup.rules.parameterization import FamilyName, Name

# How many weight layers a signal passes in a residual branch; "alone": the number of blocks stays that of the base.
Branches = Literal["several", "one", "alone"]
WORDS: dict[Branches, str] = {
    "several": "branches of two weight layers or more (transformers, ViTs)",
    "one": "branches of one weight layer",
    "alone": "only the width grows",
}
PAGE = "docs/guide/choose.md"


class Recommendation(NamedTuple):
    """families: those of the optimizers for which it was trained or derived. take: None if trainings do not decide."""

    branches: Branches
    families: tuple[FamilyName, ...]
    take: Name | None


CHOICES = (
    Recommendation("several", ("adam",), "completep"),
    Recommendation("several", ("muon",), "depth_ode"),
    Recommendation("several", ("sgd", "adafactor", "shampoo2"), None),
    Recommendation("one", ("adam", "muon", "sgd", "adafactor", "shampoo2"), "depth_mup"),
    Recommendation("alone", ("adam", "muon", "sgd", "adafactor", "shampoo2"), "mup"),
)


def take(branches: Branches, family: FamilyName) -> Name | None:
    """The parameterization to take; None where trainings do not decide between `mup` and `depth_mup`."""
    return next(choice.take for choice in CHOICES if choice.branches == branches and family in choice.families)


def line(optimizer: str, family: FamilyName) -> str:
    """One line: what to take with this optimizer, for each kind of model."""
    names = {branches: take(branches, family) or "undecided, compare mup and depth_mup" for branches in WORDS}
    return f"to take with {optimizer}: " + "; ".join(f"{WORDS[b]}: {name}" for b, name in names.items()) + f" ({PAGE})"


def sentence() -> str:
    """The answer as the pages give it."""
    adam, muon = (f"`{take('several', family)}`" for family in ("adam", "muon"))
    one, alone = (f"`{take(branches, 'adam')}`" for branches in ("one", "alone"))
    several = WORDS["several"]
    return (
        f"{several[0].upper()}{several[1:]}: {adam} with Adam or AdamW, {muon} with Muon. "
        f"B{WORDS['one'][1:]}: {one}. O{WORDS['alone'][1:]}: {alone}."
    )

"""How hyperparameters follow the batch size and the length of a training: rules as rows of a table.

Every rule is a power law of two ratios to the base: m_B of batch sizes, and m_D of examples (or tokens) seen in all,
the product of batch size and steps. docs/batch.md has the table with its sources, docs/theory.md section 1.5 the
derivation of "sde".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from depthmup.names import at_least_one, unknown
from depthmup.rules.optim import OPTIONS, family_of
from depthmup.rules.parameterization import FAMILIES, FamilyName

RuleName = Literal[
    "none", "sde", "completed_p", "timescale", "power_lines", "nanochat", "marin", "hyperp", "token_horizon"
]


class Exponents(NamedTuple):
    """Exponents of m_B and m_D in the factor of a hyperparameter. At fixed examples m_B alone changes, at a fixed batch
    size m_D alone; at fixed steps the two ratios are equal, and their exponents add up."""

    batch: float = 0.0
    examples: float = 0.0


NOTHING = Exponents()


class BatchRule(NamedTuple):
    """One rule for some optimizer families.

    lr, decay, eps: of the base values; the step multiplies the decay by the learning rate as well.
    averages: {option such as b2: exponents}, of the factor of 1 - b, which is one over a number of steps. raised: b is
      raised to that factor instead, which keeps its half-life in examples and never leaves (0, 1). limits: of such a b.
    fixed: what the source keeps fixed; at another ratio the rule says nothing.
    """

    families: tuple[FamilyName, ...]
    lr: Exponents = NOTHING
    decay: Exponents = NOTHING
    eps: Exponents = NOTHING
    averages: Mapping[str, Exponents] = {}
    raised: bool = False
    limits: tuple[float, float] = (0.0, 1.0)
    fixed: Literal["examples", "batch size"] | None = None


class Ratios(NamedTuple):
    """m_B and m_D."""

    batch: float
    examples: float

    def to(self, powers: Exponents) -> float:
        return float(self.batch**powers.batch * self.examples**powers.examples)


@dataclasses.dataclass(frozen=True)
class Run:
    """The batch size and the number of steps of a training beside those where hyperparameters were tuned.

    rule: of `RULES`. Raises ValueError for an unknown rule or a size below 1.
    """

    batch: int
    steps: int
    base_batch: int
    base_steps: int
    rule: RuleName

    def __post_init__(self) -> None:
        for name in ("batch", "steps", "base_batch", "base_steps"):
            at_least_one(name, getattr(self, name))
        if self.rule not in get_args(RuleName):
            raise unknown("batch_rule", self.rule, get_args(RuleName))

    @property
    def ratios(self) -> Ratios:
        batch = self.batch / self.base_batch
        return Ratios(batch, batch * self.steps / self.base_steps)

    def at(self, batch: int | None = None, steps: int | None = None) -> Run:
        """Another size with the same base.

        Args:
          batch, steps: of the other training; None: the same.

        Returns:
          A `Run`.

        Raises ValueError for a size below 1.
        """
        return dataclasses.replace(
            self, batch=self.batch if batch is None else batch, steps=self.steps if steps is None else steps
        )

    def row(self, family: FamilyName) -> BatchRule:
        """The rule's row of a family. Raises ValueError for a family for which the rule is not defined at any size."""
        for row in RULES[self.rule]:
            if family in row.families:
                return row
        known = sorted({name for row in RULES[self.rule] for name in row.families})
        raise ValueError(
            f"batch_rule {self.rule!r} is for the {' and '.join(known)} family, not for {family!r}: take "
            f"{_rules_for(family)}"
        )

    def of_family(self, family: FamilyName) -> BatchRule:
        """`row`, where the rule is defined at these sizes too. Raises ValueError where it is not."""
        row, (batch, examples) = self.row(family), self.ratios
        if row.fixed == "examples" and abs(examples - 1) > ROUNDING:
            raise ValueError(
                f"batch_rule {self.rule!r} is for as many examples as at the base, and these are {examples:.4g} times "
                f"as many: train steps = {round(self.base_steps / batch)}, or take {_rules_for(family, True)}"
            )
        if row.fixed == "batch size" and batch != 1:
            raise ValueError(
                f"batch_rule {self.rule!r} is for the base's batch size, {self.base_batch}, and this is {self.batch}: "
                f"take {_rules_for(family, True)}"
            )
        return row

    def factors(self, family: FamilyName) -> dict[str, float]:
        """What multiplies the hyperparameters of the base, but for averages.

        Args:
          family: of the optimizer, such as "adam".

        Returns:
          {hyperparameter: factor}.

        Raises as `of_family`.
        """
        row, to = self.of_family(family), self.ratios.to
        return {"learning_rate": to(row.lr), "weight_decay": to(row.decay), "eps": to(row.eps)}

    def scaled(self, optimizer: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The hyperparameters at this size of those at the base; options that the rule changes have their defaults.

            >>> run = Run(batch=256, steps=1000, base_batch=64, base_steps=4000, rule="sde")
            >>> run.scaled("adamw", {"learning_rate": 1e-3})["learning_rate"]
            0.002

        Args:
          optimizer: a name of `dm.optimizer`.
          values: {hyperparameter: its value at the base}, numbers, traced or not, or schedules.

        Returns:
          {hyperparameter: its value at this size}.

        Raises ValueError for an average beyond what the rule allows.
        """
        family, options = family_of(optimizer), OPTIONS[optimizer]
        result = {name: value for name, value in values.items() if value is not None}
        for name, factor in self.factors(family).items():
            if factor != 1 and (name in result or name in options):
                result[name] = times(factor, result.get(name, options.get(name)))
        rule = self.row(family)
        for name, powers in rule.averages.items():
            factor = self.ratios.to(powers)
            if factor != 1 and name in options:
                result[name] = self._average(rule, name, result.get(name, options[name]), factor)
        return result

    def _average(self, rule: BatchRule, name: str, value: Any, factor: float) -> Any:
        if rule.raised:
            scaled = value**factor
            low, high = rule.limits
            return min(max(scaled, low), high) if isinstance(scaled, float) else scaled
        scaled = 1 - factor * (1 - value)
        if isinstance(value, float | int) and not 0 <= scaled < 1:
            raise ValueError(
                f"batch_rule {self.rule!r} multiplies 1 - {name} by {factor:.4g}, and {name} = {value:g} would be "
                f"{scaled:.3g}: it ends at {1 / (1 - value):.4g}; tune nearer to this size, or give a {name} of at "
                f"least {1 - 1 / factor:.4g}"
            )
        return scaled

    def words(self, optimizer: str) -> str:
        """What the rule does with the hyperparameters of an optimizer.

            >>> run = Run(batch=256, steps=1000, base_batch=64, base_steps=4000, rule="sde")
            >>> run.words("sgd")
            "batch 64 -> 256, steps 4000 -> 1000 (examples x 1), batch_rule 'sde': learning rate x 4"

        Args:
          optimizer: a name of `dm.optimizer`.

        Returns:
          One line of text.

        Raises ValueError for an unknown optimizer, and as `of_family`.
        """
        family, ratios = family_of(optimizer), self.ratios
        factors, rule = self.factors(family), self.row(family)
        changed = [f"{name.replace('_', ' ')} x {factor:.4g}" for name, factor in factors.items() if factor != 1]
        for name, powers in rule.averages.items():
            if ratios.to(powers) != 1 and name in OPTIONS[optimizer]:
                changed.append(
                    f"{name}^{ratios.to(powers):.4g}" if rule.raised else f"1 - {name} x {ratios.to(powers):.4g}"
                )
        return (
            f"batch {self.base_batch} -> {self.batch}, steps {self.base_steps} -> {self.steps} (examples x "
            f"{ratios.examples:.4g}), batch_rule {self.rule!r}: {', '.join(changed) or 'hyperparameters stay'}"
        )


NO_BASE = (
    "a batch size and a number of steps say nothing without those where hyperparameters were tuned: give base_batch=, "
    "base_steps= and batch_rule="
)


def run_of(
    batch: int | None, steps: int | None, base_batch: int | None, base_steps: int | None, rule: RuleName | None
) -> Run | None:
    """The run of what `setup` is given; None without any. Without its own size it is at the base."""
    if base_batch is None or base_steps is None:
        if (batch, steps, base_batch, base_steps, rule) != (None,) * 5:
            raise ValueError(NO_BASE)
        return None
    if rule is None:
        raise ValueError(
            f"batch_rule= says how hyperparameters follow batch size and steps: one of {', '.join(get_args(RuleName))} "
            "(docs/batch.md says which one when)"
        )
    batch, steps = base_batch if batch is None else batch, base_steps if steps is None else steps
    return Run(batch, steps, base_batch, base_steps, rule)


def _rules_for(family: FamilyName, any_size: bool = False) -> str:
    """The names of the rules for a family, in words. any_size: those alone that are defined at every size."""
    rows = {name: [row for row in rows if family in row.families] for name, rows in RULES.items()}
    names = [name for name, of_family in rows.items() if of_family and not (any_size and of_family[0].fixed)]
    return " or ".join(map(repr, names))


def times(factor: float, value: Any) -> Any:
    """A number, or a schedule, times a factor."""
    if callable(value):
        schedule: Callable[[Any], Any] = value
        return lambda step: factor * schedule(step)
    return factor * value


ROUNDING = 0.1  # of a ratio of examples: batches of an epoch are whole
NOISE, HORIZON = Exponents(0.5, 0), Exponents(0.5, -0.5)
RULES: dict[RuleName, tuple[BatchRule, ...]] = {
    "none": (BatchRule(tuple(FAMILIES)),),
    # Malladi et al. 2022 (arXiv 2205.10287); the decay keeps learning rate x decay x steps. SGD: Goyal et al. 2017.
    "sde": (
        BatchRule(("sgd",), lr=Exponents(1, 0), fixed="examples"),
        BatchRule(
            ("adam",),
            lr=NOISE,
            decay=NOISE,
            eps=Exponents(-0.5, 0),
            averages={"b1": Exponents(1, 0), "b2": Exponents(1, 0)},
            fixed="examples",
        ),
    ),
    # Mlodozeniec et al. 2025 (arXiv 2512.22382): a function of the steps alone.
    "completed_p": (
        BatchRule(
            ("adam",),
            lr=HORIZON,
            decay=HORIZON,
            eps=Exponents(-0.5, 0.5),
            averages={"b1": Exponents(1, -1), "b2": Exponents(1, -1)},
        ),
    ),
    # Wang and Aitchison 2024 (arXiv 2405.13698): the decay alone, so that learning rate x decay x steps stays.
    "timescale": (BatchRule(tuple(FAMILIES), decay=Exponents(1, -1)),),
    # Bergsma et al. 2025 (arXiv 2505.13738): the timescale as a share of the training falls as examples^-0.527.
    "power_lines": (BatchRule(("adam",), decay=Exponents(1, -0.473)),),
    # karpathy/nanochat 92d63d4, scripts/base_train.py
    "nanochat": (BatchRule(("adam", "muon"), lr=NOISE, decay=Exponents(0.5, -1)),),
    # marin-community/marin 054a715f, experiments/scaling_law_sweeps/completed_adamh.py, its group for Adam; 2e8ced2c,
    # the MuonH recipe of May 2026
    "marin": (
        BatchRule(
            ("adam",), lr=HORIZON, eps=Exponents(-0.5, 0.5), averages={"b2": Exponents(1, 0)},
            raised=True, limits=(0.9, 0.9999),
        ),
        BatchRule(
            ("muon",), lr=Exponents(0.5, -0.395), eps=Exponents(-0.5, 0.5), averages={"b2": Exponents(1, 0)},
            raised=True, limits=(0.95, 0.9999),
        ),
    ),
    # Ren et al. 2026 (arXiv 2603.28743), microsoft/ArchScale c2ec1d69, pretrain.py: as it runs with MuonH
    "hyperp": (BatchRule(("muon",), lr=Exponents(0.5, -0.32)),),
    # Bjorck et al. 2024 (arXiv 2409.19913)
    "token_horizon": (BatchRule(("adam",), lr=Exponents(0, -0.32), fixed="batch size"),),
}  # fmt: skip

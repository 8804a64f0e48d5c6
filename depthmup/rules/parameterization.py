"""The exponent table: (role, in_branch, width, depth, optimizer family) -> init, multiplier, LR, eps, decay.

Every rule of every named parameterization is in `FAMILIES`, `TABLES` and `Parameterization.leaf`, nowhere else;
docs/rules.md section 0 is the same table in words and docs/theory.md section 1 its derivation.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypedDict, get_args

from depthmup.names import FINITE, POSITIVE, Range, at_least_one, check_32_bits, short, unknown

Role = Literal["input", "hidden", "output", "readout", "vector", "scalar", "fixed"]
FamilyName = Literal["sgd", "adam", "muon", "adafactor", "shampoo2"]
Form = Literal["mup", "fan_in", "canonical", "absorbed"]
Kind = Literal["branch", "output", "attention"]  # the factors of the forward pass
Name = Literal["sp", "depth_sp", "ntp", "mup", "depth_mup", "depth_ode", "am_mup", "completep"]
ROLES: tuple[Role, ...] = get_args(Role)
FORMS: tuple[Form, ...] = get_args(Form)
KINDS: tuple[Kind, ...] = get_args(Kind)
LR_DEPTH = Range(low=-10, most=10)  # an exponent of depth


class Powers(NamedTuple):
    """Exponents of m_in and m_out, a parameter's fan-in and fan-out over the same at the base width.

    A fan that a parameter lacks counts as 1.
    """

    m_in: float = 0.0
    m_out: float = 0.0


class WidthRule(NamedTuple):
    """The width exponents of one factor (docs/rules.md section 0)."""

    matrix: Powers  # of every role but the readout
    readout: Powers  # of the readout, which the output factor multiplies


INIT_STD = WidthRule(Powers(), Powers(0.5))  # initial standard deviation over sigma / sqrt(fan_in)
OUTPUT = Powers(-1)  # the factor that multiplies the readout's output
EPS = {
    "entry": WidthRule(Powers(0, -1), Powers(-1)),  # like an entry of the gradient
    "norm": WidthRule(Powers(0.5, -0.5), Powers(-0.5)),  # like the gradient's Frobenius norm
}


@dataclasses.dataclass(frozen=True)
class Family:
    """How the update of an optimizer depends on gradient and weight, and the powers that follow.

    lr: width exponents of the learning rate (docs/theory.md section 1.3).
    gradient, weight: the degrees of the update in the gradient and in the weight: with a gradient c times as large the
      update is c^gradient times as large.
    eps: the optimizer adds its eps to an entry of the gradient, or to the gradient's Frobenius norm.
    """

    lr: WidthRule
    gradient: int = 0
    weight: int = 0
    eps: Literal["entry", "norm"] = "entry"

    @property
    def linear(self) -> bool:
        """Whether the update is linear in the gradient, so that no eps is needed."""
        return self.gradient == 1

    @property
    def gamma(self) -> int:
        """The exponent of gamma in the LR: gradients are proportional to 1 / gamma, changes of features to gamma."""
        return 1 + self.gradient

    @property
    def storage(self) -> int:
        """Storing weight / s divides the LR by s to this power."""
        return 1 + self.gradient - self.weight

    def depth(self, alpha: float) -> float:
        """The exponent of m_L in the LR of leaves in branches, whose gradients are proportional to m_L^-alpha."""
        return alpha * (1 + self.gradient) - 1


FAMILIES: dict[FamilyName, Family] = {
    "sgd": Family(WidthRule(Powers(-1, 1), Powers(1)), gradient=1),
    "adam": Family(WidthRule(Powers(-1, 0), Powers())),
    "muon": Family(WidthRule(Powers(-0.5, 0.5), Powers(0.5)), eps="norm"),
    "adafactor": Family(WidthRule(Powers(-0.5, 0), Powers()), weight=1),
    "shampoo2": Family(WidthRule(Powers(), Powers()), gradient=-1, eps="norm"),
}


@dataclasses.dataclass(frozen=True)
class Table:
    """One named parameterization, as exponents.

    width: whether init, forward pass, LR and eps have powers of width (maximal update); False: every factor is 1.
    alpha: branch exponent; None means no power of depth anywhere. Else, with m_L the number of blocks over that at the
      base depth, m_L^-alpha multiplies a branch's output and its leaves' eps, m_L^`Family.depth(alpha)` their LR.
    gamma_width: gamma = gamma0 m^gamma_width; NTP is muP with gamma ~ width^-1/2 (docs/theory.md section 1).
    attention: attention logits are divided by head_dim^attention.
    lr_depth: if given (AM-muP), every LR is multiplied by m_L^lr_depth, and m_L^-alpha multiplies the initial standard
      deviation of branch weights instead of the forward pass.
    decay_follows: the decay factor is the inverse of the LR factor ("lr"), or of its powers of width only (CompleteP).
    families: optimizer families for which the rule is defined.
    instead: what to use for the others, in words.
    """

    width: bool = True
    alpha: float | None = None
    gamma_width: float = 0.0
    attention: float = 1.0
    lr_depth: float | None = None
    decay_follows: Literal["lr", "width"] = "lr"
    families: tuple[FamilyName, ...] = tuple(FAMILIES)
    instead: str = "another parameterization"


TABLES: dict[str, Table] = {
    "sp": Table(width=False, attention=0.5),
    "depth_sp": Table(width=False, alpha=0.5, attention=0.5),
    "ntp": Table(gamma_width=-0.5, attention=0.5),
    "mup": Table(),
    "depth_mup": Table(alpha=0.5),
    "depth_ode": Table(alpha=1.0),
    "am_mup": Table(
        width=False, alpha=0.5, lr_depth=-1.5, attention=0.5, families=("sgd",), instead="mup or depth_mup"
    ),
    "completep": Table(alpha=1.0, decay_follows="width"),
}


class ForwardFactors(NamedTuple):
    """The three factors in a model's equation; a pytree, so that they can be traced or stacked over trials."""

    branch: float  # h <- h + branch * f(h)
    output: float  # logits = output * readout(h)
    attention: float | None  # logits of attention = attention * q . k


class LeafFactors(NamedTuple):
    """The factors of one parameter (docs/rules.md section 0); `specs.factors` puts a tree of them into each field."""

    init: float  # initial standard deviation over the standard deviation of the standard fan-in init
    multiplier: float  # the stored parameter enters the model's equation times this (1 in the form "mup")
    lr: float  # learning rate over the base learning rate
    eps: float  # Adam's or Muon's eps over the base eps
    decay: float  # weight decay over the base decay; the step multiplies the decay by `lr` as well


@dataclasses.dataclass(frozen=True)
class Parameterization:
    """A row of `TABLES` with its base shape; `parameterization` explains the fields, `in_form` explains `form`.

    All ratios are relative to the base shape: m = width / base_width, m_L = blocks(depth) / blocks(base_depth). A ratio
    may be below 1: every rule is a power law, which holds on both sides of the base.
    """

    name: str
    base_width: int = 1
    base_depth: int = 1
    base_head_dim: int = 1
    alpha: float | None = None
    gamma0: float = 1.0
    beta0: float = 1.0
    lr_depth: float | None = None
    branch_init: str = "*"
    blocks: Callable[[int], int] | None = None
    form: Form = "mup"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in TABLES:
            raise unknown("parameterization", self.name, TABLES)
        for what in ("base_width", "base_depth", "base_head_dim"):
            at_least_one(what, getattr(self, what))
        for what in ("gamma0", "beta0"):
            POSITIVE.check(what, getattr(self, what))
            check_32_bits(what, getattr(self, what))
        if self.alpha is not None:
            FINITE.check("alpha", self.alpha)
            if not 0.5 <= self.alpha <= 1:
                raise ValueError(
                    f"alpha must be between 1/2 and 1, got {self.alpha}: below, features grow with depth; above, "
                    "branches vanish"
                )
        if self.lr_depth is not None:
            LR_DEPTH.check("lr_depth", self.lr_depth)
        if not isinstance(self.branch_init, str):
            raise ValueError(f"branch_init must be a glob of paths, got {short(self.branch_init)}")
        if not (self.blocks is None or callable(self.blocks)):
            raise ValueError(f"blocks must be a function of the depth, got {short(self.blocks)}")
        if self.branch_init != "*" and not self.arithmetic_mean:
            raise ValueError(f"branch_init is a setting of am_mup only, not of {self.name!r}")
        for name in ("alpha", "lr_depth"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self.table, name))
        if self.lr_depth is not None and self.alpha is None:
            raise ValueError(f"lr_depth is the exponent of a depth rule, which {self.name!r} lacks: give alpha too")

    @property
    def table(self) -> Table:
        return TABLES[self.name]

    @property
    def init_family(self) -> FamilyName:
        """A family that the parameterization is defined for: initial weights and multipliers are those of all."""
        return self.table.families[0]

    @property
    def has_base(self) -> bool:
        """Whether there is a base shape; base_width 1 is the absolute form of the papers, without one."""
        return self.base_width > 1

    def base_or(self, width: int, depth: int) -> tuple[int, int]:
        """The base shape; in the absolute form this one."""
        return (self.base_width, self.base_depth) if self.has_base else (width, depth)

    @property
    def arithmetic_mean(self) -> bool:
        """Whether depth acts as in AM-muP: on every LR and on the init of branch weights, not on the forward pass."""
        return self.table.lr_depth is not None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The factors of the forward pass that can differ from 1, or for "attention" from 1/sqrt(head_dim)."""
        branch = self.beta0 != 1 or (self.alpha is not None and not self.arithmetic_mean)
        output = self.gamma0 != 1 or self.table.gamma_width != 0 or self.table.width
        applied = {"branch": branch, "output": output, "attention": self.table.attention != 0.5}
        return tuple(kind for kind in KINDS if applied[kind])

    def count_blocks(self, depth: int) -> int:
        """The number of residual blocks at a depth, which is the depth itself unless `blocks` says otherwise."""
        if self.blocks is None:
            return depth
        count = self.blocks(depth)
        POSITIVE.check(f"blocks({depth})", count)
        return count

    def ratios(self, width: int, depth: int) -> tuple[float, float]:
        """Width and number of blocks over those at the base. This is the only place where a depth becomes a number of
        blocks.

            >>> dm.parameterization("depth_mup", base_width=64, base_depth=2).ratios(256, 8)
            (4.0, 4.0)

        Args:
          width, depth: in the units of `base_width` and `base_depth`.

        Returns:
          (m, m_L).

        Raises ValueError for a width or depth below 1.
        """
        at_least_one("width", width)
        at_least_one("depth", depth)
        return width / self.base_width, self.count_blocks(depth) / self.count_blocks(self.base_depth)

    def forward_factors(self, *, width: int, depth: int, head_dim: float | None = None) -> ForwardFactors:
        """The branch, output and attention factors at this shape.

        branch = beta0 m_L^-alpha (am_mup: beta0); output = 1 / (gamma m) (sp, am_mup: 1 / gamma); attention =
        sqrt(base_head_dim) / head_dim (sp, ntp, am_mup: 1 / sqrt(head_dim)) or None. Docs: rules.md section 0.

            >>> dm.parameterization("depth_mup", base_width=64, base_depth=2).forward_factors(width=256, depth=8)
            ForwardFactors(branch=0.5, output=0.25, attention=None)

        Args:
          width, depth: in the units of the base's.
          head_dim: of an attention's heads; None: without attention.

        Returns:
          `ForwardFactors`, three numbers.

        Raises ValueError for a width, depth or head size below 1.
        """
        m, m_L = self.ratios(width, depth)
        attention = None
        if head_dim is not None:
            Range(low=1).check("head_dim", head_dim)
            power = self.table.attention
            attention = self.base_head_dim ** (power - 0.5) / head_dim**power
        if self.form == "absorbed":
            return ForwardFactors(1.0, 1.0, attention)
        return ForwardFactors(self._branch(m_L), self._output(m), attention)

    def leaf(
        self,
        *,
        role: Role,
        in_branch: bool,
        width: int,
        depth: int,
        fan_in: float,
        family: FamilyName = "sgd",
        path: str = "",
        absorbs: Mapping[Kind, float] | None = None,
        in_stream: bool = False,
    ) -> LeafFactors:
        """The factors of one parameter: the rules of the table, then the exact rescaling of the storage form.

            >>> p = dm.parameterization("mup", base_width=64)
            >>> p.leaf(role="hidden", in_branch=True, width=256, depth=4, fan_in=256, family="adam").lr
            0.25

        Args:
          role: one of ROLES.
          in_branch: whether it is inside a residual branch.
          width, depth: in the units of the base's.
          fan_in: its fan-in at this width, which only the form "canonical" uses.
          family: what its update does with the gradient. "sgd": linear (also momentum). "adam": entries of order 1,
            whatever the gradient's size (also AdamW, Lion). "muon": singular values of order 1. "adafactor": entries of
            the order of the weight's own root mean square. "shampoo2": singular values inverse to the gradient's
            (Shampoo with exponents 1/2).
          path: its path, which the glob `branch_init` may match.
          absorbs: for the form "absorbed", the kinds of factors that the parameter is stored times ("branch", "output",
            "attention"), each with its head size; None: one of the first two, by its role and place.
          in_stream: whether it acts on the residual stream in every block instead.

        Returns:
          `LeafFactors`, five numbers.

        Raises ValueError for an unknown role or family, a family for which the parameterization is not defined, or
        factors that 32 bits do not hold.
        """
        if role not in ROLES:
            raise unknown("role", role, ROLES)
        self.check_family(family)
        m, m_L = self.ratios(width, depth)
        kind, by_width = FAMILIES[family], self.table.decay_follows == "width"
        if role == "scalar" and not (in_branch or in_stream or absorbs):  # a readout bias: nothing to scale
            lr = m_L ** self.depth_power(family) if self.arithmetic_mean else 1.0
            return LeafFactors(1.0, 1.0, lr, 1.0, 1 / lr)
        m_in = m if role in ("hidden", "output", "readout") else 1.0
        m_out = m if role in ("input", "hidden", "vector") else 1.0

        def width_power(rule: WidthRule) -> float:
            powers = rule.readout if role == "readout" else rule.matrix
            return m_in**powers.m_in * m_out**powers.m_out if self.table.width else 1.0

        gamma = self._gamma(m)
        init, width_lr = width_power(INIT_STD), width_power(kind.lr)
        lr = width_lr * gamma**kind.gamma
        eps = width_power(EPS[kind.eps]) / gamma
        decay = 1.0 / (width_lr if by_width else lr)
        depth_lr = m_L ** self.depth_power(family, in_stream)
        if self.arithmetic_mean:
            lr *= depth_lr
            decay /= depth_lr
            if self.scales_init(role, in_branch, path):
                init *= m_L**-self.alpha  # type: ignore[operator]
        elif (in_branch or in_stream) and self.alpha is not None:
            lr *= depth_lr
            decay /= 1.0 if by_width else depth_lr
            eps *= m_L**-self.alpha if in_branch else 1.0

        if absorbs is None:
            absorbs = {"output": 0} if role == "readout" else {"branch": 0} if in_branch else {}
        s = self._storage(role, m, m_L, fan_in, init, absorbs)
        multiplier = 1.0 if self.form == "absorbed" else s
        in_lr = s**kind.storage
        factors = LeafFactors(init / s, multiplier, lr / in_lr, eps * s, decay * in_lr)
        for name, factor in factors._asdict().items():
            check_32_bits(f"{path or role} at width {width}, depth {depth}: the {name} factor of {self.name}", factor)
        return factors

    def scales_init(self, role: Role, in_branch: bool, path: str) -> bool:
        """Whether AM-muP gives a parameter's init a power of depth: weights of branches that `branch_init` matches."""
        weights = self.arithmetic_mean and in_branch and role not in ("vector", "scalar")
        return weights and fnmatch.fnmatchcase(path, self.branch_init)

    def in_form(self, form: Form) -> Parameterization:
        """This parameterization with other stored numbers: the same function and training (docs/theory.md section 1).

        Dividing a stored weight by s divides its SGD LR by s^2, its Adam and Muon LR by s, leaves Adafactor's, and
        multiplies eps by s.

        Args:
          form: "mup" (the default), "fan_in" (all variances 1/fan_in), "canonical" (all N(0, 1)), "absorbed" (the
            factors of the forward pass are inside the weights that `absorb` has found; without it a branch must be one
            weight layer and nothing else).

        Returns:
          A `Parameterization`.

        Raises ValueError for an unknown form.
        """
        if form not in FORMS:
            raise unknown("storage form", form, FORMS)
        return dataclasses.replace(self, form=form)

    def check_family(self, family: FamilyName) -> None:
        """Checks that the parameterization has rules for an optimizer.

            >>> dm.parameterization("depth_mup").check_family("adam")

        Args:
          family: of the optimizer, such as "adam".

        Raises ValueError for an unknown optimizer family, or one for which the parameterization is not defined.
        """
        if family not in FAMILIES:
            raise unknown("optimizer family", family, FAMILIES)
        if family not in self.table.families:
            raise ValueError(
                f"{self.name} is defined for the {' and '.join(self.table.families)} family only, not for {family!r}: "
                f"use {self.table.instead}"
            )

    def _gamma(self, m: float) -> float:
        return self.gamma0 * m**self.table.gamma_width

    def _branch(self, m_L: float) -> float:
        power = 0.0 if self.alpha is None or self.arithmetic_mean else -self.alpha
        return self.beta0 * m_L**power

    def depth_power(self, family: FamilyName, in_stream: bool = False) -> float:
        """The exponent of m_L in the LR: of every leaf under AM-muP, else of the leaves in branches; or of those that
        act on the stream in every block, as branches with alpha = 0 do."""
        if in_stream and self.alpha is not None and not self.arithmetic_mean:
            return FAMILIES[family].depth(0.0)
        if self.lr_depth is not None:
            return self.lr_depth
        return 0.0 if self.alpha is None else FAMILIES[family].depth(self.alpha)

    def _output(self, m: float) -> float:
        return (m**OUTPUT.m_in if self.table.width else 1.0) / self._gamma(m)

    def _storage(
        self, role: Role, m: float, m_L: float, fan_in: float, init: float, absorbs: Mapping[Kind, float]
    ) -> float:
        """The divisor s: this form stores weight / s, where `weight` is the number that the form "mup" stores."""
        if self.form == "mup":
            return 1.0
        if self.form == "absorbed":
            product = 1.0
            for kind, head_dim in absorbs.items():
                if kind == "attention":  # over the 1/sqrt(head_dim) of a model that takes no factor
                    product *= (self.base_head_dim / head_dim) ** (self.table.attention - 0.5)
                else:
                    product *= self._output(m) if kind == "output" else self._branch(m_L)
            return 1.0 / product
        return init / (math.sqrt(fan_in) if self.form == "canonical" and role not in ("vector", "scalar") else 1.0)


def check_parameterization(p: object) -> None:
    """Raises ValueError for what is no `Parameterization`."""
    if not isinstance(p, Parameterization):
        raise ValueError(f"the parameterization must be what dm.parameterization(name, ...) returns, got {short(p)}")


class ParameterizationOptions(TypedDict, total=False):
    """The arguments of `parameterization` beside name, base width and base depth, which `dm.setup` takes too."""

    base_head_dim: int
    alpha: float | None
    gamma0: float
    beta0: float
    lr_depth: float | None
    branch_init: str
    blocks: Callable[[int], int] | None


def parameterization(
    name: Name,
    *,
    base_width: int = 1,
    base_depth: int = 1,
    base_head_dim: int = 1,
    alpha: float | None = None,
    gamma0: float = 1.0,
    beta0: float = 1.0,
    lr_depth: float | None = None,
    branch_init: str = "*",
    blocks: Callable[[int], int] | None = None,
) -> Parameterization:
    """A parameterization by name.

    Args:
      name: "sp", "depth_sp" (sp with branches 1/sqrt(depth)), "ntp", "mup", "depth_mup" (mup with the same),
        "depth_ode" (1/depth), "am_mup", "completep".
      base_width, base_depth: the shape at which hyperparameters were tuned. "mup", "depth_mup" and "depth_ode" equal
        "sp" there. With the default 1 the factors are absolute, as in the papers. base_depth counts what the model's
        depth counts.
      base_head_dim: head size at which attention has the usual 1/sqrt(head_dim); 1 gives the paper's 1/head_dim.
      alpha: branch exponent in [1/2, 1] instead of the table's own (docs/theory.md section 1.1); it switches the depth
        rule on for "sp", "mup" and "ntp".
      gamma0: richness. The output is divided by gamma0; with a small one training is lazy (features hardly move).
      beta0: branch multiplier at the base depth.
      lr_depth: the exponent of the learning rate in depth: of every LR under "am_mup", by default -3/2; of the LRs in
        branches under any other depth rule, by default 2 alpha - 1 (SGD) and alpha - 1 (the other families).
      branch_init: for "am_mup" only, a glob of parameter paths: the branch weights whose initial standard deviation is
        multiplied by m_L^-alpha, by default all; "*/last/*" is the last layer of each branch of `ResidualCNN`.
      blocks: the number of residual blocks of the model at a depth, such as `lambda n: 3 * n`; None: the depth itself.

    Returns:
      The `Parameterization`, which gives factors at any width and depth.

    Raises ValueError for an unknown name or a value out of range.
    """
    return Parameterization(
        name, base_width, base_depth, base_head_dim, alpha, gamma0, beta0, lr_depth, branch_init, blocks
    )

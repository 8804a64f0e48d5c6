"""Published rules for the best learning rate of a training, as data: exponents of sizes, with sources.

A rule multiplies the best learning rate by 2^x where a size doubles and the other sizes stay, but for those that grow
along with it (`along`): many laws hold at the best batch size, which grows with the tokens. tests/test_law_prior.py
compares each with numbers of its source, and with depthmup's own tables where they have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

Size = Literal["width", "depth", "parameters", "tokens", "batch_size"]
Family = Literal["adam", "sgd", "muon"]
Powers = Mapping[Size, float]


class PublishedRule(NamedTuple):
    """One rule for some optimizer families.

    exponents: of the best learning rate; a rule says nothing of a size that is not among them.
    source: arXiv number or repository with commit, and the place; "by": where that was read, if not in the source.
    along: {size: {another size that grows with it: its exponent}}. Without an entry the batch size stays when the
      tokens grow, and the tokens stay when the batch size grows.
    coefficient: of the law in numbers of parameters, tokens, and sequences of a batch; None where the rule has none.
    parameterization: the one whose base learning rate is meant; None: one rate for all parameters.
    fitted: whether the exponents were fitted to sweeps, rather than derived or taken as a recipe.
    """

    name: str
    families: tuple[Family, ...]
    exponents: Powers
    source: str
    along: Mapping[Size, Powers] = {}
    coefficient: float | None = None
    parameterization: str | None = None
    fitted: bool = False

    def doublings(self, size: Size) -> dict[str, float]:
        """How often width, depth, parameters, batch_size and steps double where a size doubles once: the line along
        which the rule's exponent of this size is compared with a fitted law."""
        grown: dict[str, float] = {size: 1.0}
        for other, power in self.along.get(size, {}).items():
            grown[other] = power
        grown["steps"] = grown.pop("tokens", 0.0) - grown.get("batch_size", 0.0)
        return {axis: number for axis, number in grown.items() if number}

    def rate(self, sizes: Powers) -> float:
        """The best learning rate at these sizes. Raises ValueError for a rule without a coefficient."""
        if self.coefficient is None:
            raise ValueError(f"{self.name} says how a learning rate changes, not which one is best")
        return self.coefficient * math.prod(sizes[size] ** power for size, power in self.exponents.items())


def of_compute(name: str, source: str, rate: tuple[float, float], batch: float) -> PublishedRule:
    """A law of the learning rate, (coefficient, exponent), and the exponent of the batch size, in the compute C = 6
    parameters x tokens."""
    coefficient, power = rate
    exponents: Powers = {"parameters": power, "tokens": power}
    along: Mapping[Size, Powers] = {"parameters": {"batch_size": batch}, "tokens": {"batch_size": batch}}
    return PublishedRule(name, ("adam",), exponents, source, along, coefficient * 6**power, fitted=True)


PUBLISHED_RULES: tuple[PublishedRule, ...] = (
    # Laws that were fitted to sweeps.
    PublishedRule(
        "Step Law", ("adam",), {"parameters": -0.713, "tokens": 0.307},
        "arXiv 2503.04715; step-law/steplaw 32a8f4c, data/1004_fitted_lr_bs_scaling_model_parameters.csv",
        along={"tokens": {"batch_size": 0.571}}, coefficient=1.79, fitted=True,
    ),
    of_compute("DeepSeek LLM", "arXiv 2401.02954, equation 1, by notes of readers", (0.3118, -0.1250), 0.3271),
    of_compute("Ling, mixture of experts", "arXiv 2507.17702, equation 3", (1.1576, -0.1529), 0.3644),
    PublishedRule(
        "Porian et al.", ("adam",), {"parameters": -0.36}, "arXiv 2406.19146, by Step Law's table 1",
        along={"parameters": {"batch_size": 0.703, "tokens": 1.0}}, coefficient=3.7, fitted=True,
    ),
    PublishedRule(
        "token_horizon", ("adam",), {"parameters": -0.23, "tokens": -0.32},
        "arXiv 2409.19913, section 4 (760 million to 2.7 billion parameters), by Step Law's table 1", fitted=True,
    ),
    PublishedRule(
        "Power scheduler", ("adam",), {"batch_size": 1.0, "tokens": -0.51}, "arXiv 2408.13359, equations 5 and 6",
        coefficient=4.6, parameterization="mup", fitted=True,
    ),
    PublishedRule(
        "MiniCPM", ("adam",), {"parameters": 0.0},
        "arXiv 2404.06395, section 3.3 (.01 at all sizes), by notes of readers", parameterization="mup", fitted=True,
    ),
    PublishedRule(
        "Scion", ("muon",), {"batch_size": 0.62, "tokens": -0.56},
        "arXiv 2510.03871, section 6, by emergentmind.com/open-problems/origin-of-scaling-exponents-scion", fitted=True,
    ),
    PublishedRule(
        "Scion at its best batch size", ("muon",), {"tokens": -0.28}, "as the one before",
        along={"tokens": {"batch_size": 0.45}}, fitted=True,
    ),
    PublishedRule(
        "one-third data scaling", ("adam",), {"batch_size": 0.76, "tokens": -0.35},
        "arXiv 2609.37745, a softmax teacher and student of one layer, by a summary", fitted=True,
    ),
    PublishedRule(
        "one-third data scaling", ("sgd",), {"batch_size": 1.01, "tokens": -0.04},
        "arXiv 2609.37745, a softmax teacher and student of one layer, by a summary", fitted=True,
    ),
    PublishedRule(
        "marin", ("muon",), {"batch_size": 0.5, "tokens": -0.395},
        "marin-community/marin 2e8ced2c, the MuonH recipe of May 2026", fitted=True,
    ),
    PublishedRule(
        "hyperp", ("muon",), {"depth": -0.5, "batch_size": 0.5, "tokens": -0.32},
        "arXiv 2603.28743; microsoft/ArchScale c2ec1d69, pretrain.py", fitted=True,
    ),
    # Derived ones and recipes; batch_rules has those of batch size and tokens, with their decay and averages.
    PublishedRule("muP", ("adam", "sgd", "muon"), {"width": 0.0}, "arXiv 2203.03466", parameterization="mup"),
    PublishedRule("muP as one rate", ("adam",), {"width": -1.0}, "arXiv 2203.03466: hidden weights"),
    PublishedRule(
        "depth-muP", ("adam", "sgd"), {"width": 0.0, "depth": 0.0}, "arXiv 2309.16620 and 2310.02244",
        parameterization="depth_mup",
    ),
    PublishedRule(
        "CompleteP", ("adam",), {"width": 0.0, "depth": 0.0}, "arXiv 2505.01618; EleutherAI/nanoGPT-mup 6f8bc3b",
        parameterization="completep",
    ),
    PublishedRule("sde", ("adam",), {"batch_size": 0.5}, "arXiv 2205.10287"),
    PublishedRule("sde", ("sgd",), {"batch_size": 1.0}, "arXiv 1706.02677"),
    PublishedRule("completed_p", ("adam",), {"batch_size": 0.5, "tokens": -0.5}, "arXiv 2512.22382"),
    PublishedRule(
        "timescale", ("adam", "sgd", "muon"), {"batch_size": 0.0, "tokens": 0.0},
        "arXiv 2405.13698: the decay follows",
    ),
    PublishedRule("power_lines", ("adam",), {"batch_size": 0.0, "tokens": 0.0}, "arXiv 2505.13738: the decay follows"),
    PublishedRule(
        "nanochat", ("adam", "muon"), {"batch_size": 0.5, "tokens": 0.0},
        "karpathy/nanochat 92d63d4, scripts/base_train.py",
    ),
    PublishedRule(
        "marin", ("adam",), {"batch_size": 0.5, "tokens": -0.5},
        "marin-community/marin 054a715f, experiments/scaling_law_sweeps/completed_adamh.py",
    ),
)  # fmt: skip

"""The decision table of docs/guide/choose.md, which `experiments.documents` writes: what rows say of each choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from depthmup.report.curves import TransferCurve
from experiments.figures import page
from experiments.figures.figure import markdown
from experiments.language.sweeps import published
from experiments.published import Sweep

COLUMNS = ("your model", "optimizer", "what changes", "take", "evidence here")
CIFAR, PATCHES, DIGITS, GPT = "CIFAR-10 (JPEG)", "patches", "digits", "small GPTs"


class Evidence(NamedTuple):
    """Curves that speak for a row: of one sweep, axis, optimizer and variant.

    take: the parameterizations of the row. others: those that are shown beside them.
    """

    where: str
    sweep: str
    axis: str = "depth"
    optimizer: str = "sgd"
    variant: str = ""
    take: Sequence[str] = ("depth_mup",)
    others: Sequence[str] = ("sp", "mup")


def _vit(norm: str) -> tuple[Evidence, ...]:
    """Of depthmup's own rule for Adam (lr_depth -0.5), and of the papers' with a cosine."""
    adam = Evidence(CIFAR, "vit", optimizer="adam", variant=f"norm {norm}, lr_depth -0.5", others=())
    paper = adam._replace(where=f"{CIFAR}, lr_depth 0", variant=f"norm {norm}, lr_depth 0")
    unscaled = adam._replace(where=f"{CIFAR}, `mup`", variant=f"norm {norm}, lr_depth None", take=("mup",))
    return (adam, paper, unscaled, Evidence(PATCHES, "patches16_vit", optimizer="adam", variant=f"norm {norm}"))


WIDTH = Evidence(DIGITS, "digits_transfer", axis="width", take=("mup", "depth_mup"), others=("sp",))
ROWS: tuple[tuple[tuple[str, str, str, str], tuple[Evidence, ...], str], ...] = (
    (
        ("residual, branches without a norm (MLP, SimpleResNet)", "SGD", "depth", "`depth_mup`"),
        (
            Evidence(CIFAR, "simple_resnet"),
            Evidence(f"{CIFAR}, width 128", "simple_resnet_128", others=()),
            Evidence(PATCHES, "patches16_simple_resnet"),
            Evidence(DIGITS, "digits_transfer"),
        ),
        "",
    ),
    (("residual MLP", "Adam", "depth", "`depth_mup`"), (Evidence(DIGITS, "digits_transfer", optimizer="adam"),), ""),
    (("ViT with layer norm", "Adam", "depth", "`depth_mup`"), _vit("layer"), ""),
    (
        ("ViT without norm", "Adam", "depth", "`depth_mup`"),
        _vit("none"),
        "`mup` does not train at all at depth 8 and 16",
    ),
    (
        ("transformer (language)", "AdamW", "depth", "`completep` or `depth_mup`"),
        (Evidence(GPT, "study", optimizer="adamw", take=("completep", "depth_mup"), others=("sp",)),),
        "The loss of `completep` is the lowest of the four ([a language model](../language.md))",
    ),
    (
        ("transformer (language)", "Muon", "depth", "`depth_ode`"),
        (Evidence(GPT, "study", optimizer="muon", take=("depth_ode",), others=("depth_mup",)),),
        "",
    ),
    (
        ("any of these", "SGD", "width only", "`mup` (or `depth_mup`)"),
        (WIDTH._replace(where=CIFAR, sweep="simple_resnet"), WIDTH),
        "",
    ),
    (
        ("any of these", "Adam, AdamW", "width only", "`mup` (or `depth_mup`)"),
        (
            WIDTH._replace(optimizer="adam"),
            WIDTH._replace(where=GPT, sweep="study", optimizer="adamw", take=("mup",)),
        ),
        "",
    ),
    (
        ("ResNet with batch norm", "SGD", "depth", "`depth_mup`"),
        (
            Evidence(CIFAR, "resnet", variant="norm batch", others=("mup",)),
            Evidence(f"{CIFAR}, beta0 = 1/16", "resnet_beta0", others=("mup",)),
        ),
        "Along depth the coordinate check is ok at beta0 = 1/16 and not at 1 ([results](../results.md#figure-2-b4), "
        "[checks](../checks.md))",
    ),
    (
        (
            "plain network without skip connections",
            "SGD",
            "depth",
            "none is known to be good: `mup`, and tune at two depths",
        ),
        (Evidence(f"{CIFAR}, AM-muP's network", "plain", take=("am_mup",), others=()),),
        "AM-muP's L^-3/2 is a claim about it ([results](../results.md#figure-2a))",
    ),
    (("anything", "any", "nothing", "`sp`"), (), "all factors are 1"),
)


def table(sweeps: Mapping[str, Sweep]) -> str:
    """The table, of the sweeps of experiments/demos.py, of both papers' figures and of the language study."""
    of: dict[str, Sequence[TransferCurve]] = {name: sweep.curves for name, sweep in sweeps.items()}
    for paper in page.PAPERS:
        of |= {name: sweep.curves for name, sweep in page.read(paper).items()}
    of["study"] = published("study").curves
    rows = [(*choice, ". ".join(filter(None, (*(_words(of, one) for one in evidence), more))))
            for choice, evidence, more in ROWS]  # fmt: skip
    return markdown(COLUMNS, rows)


def _words(of: Mapping[str, Sequence[TransferCurve]], one: Evidence) -> str:
    """The verdicts of the row's parameterizations, then those of others, each said once."""
    results = {c.parameterization: c.result for c in of[one.sweep]
               if (c.axis, c.optimizer, c.variant) == (one.axis, one.optimizer, one.variant)}  # fmt: skip
    with_text: dict[str, list[str]] = {}
    for name in (name for name in (*one.take, *one.others) if name in results):
        cost = f", costs at most {results[name].cost}" if name in one.take and results[name].cost else ""
        with_text.setdefault(results[name].verdict + cost, []).append(name)
    parts = [text if names == list(one.take) else f"`{'`, `'.join(names)}` {text}" for text, names in with_text.items()]
    sizes = next(iter(results.values())).values
    return f"{one.where[0].upper()}{one.where[1:]}, {one.axis} {sizes[0]:g} to {sizes[-1]:g}: {'; '.join(parts)}"

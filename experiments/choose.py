"""The decision table of docs/guide/choose.md, which `experiments.documents` writes: what rows say of each choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from depthmup.fit.verdict import Verdict
from depthmup.rules import recommended
from depthmup.rules.parameterization import FamilyName
from depthmup.rules.recommended import Branches
from depthmup.trials.verdicts import TransferCurve
from experiments import language
from experiments.figures import page
from experiments.output import markdown
from experiments.published import Sweep

VERDICTS: tuple[Verdict, ...] = ("transfers", "undecided", "does not transfer")  # "nothing learned" is no evidence
COLUMNS = ("your model", "optimizer", "take", *(f"{verdict} on" for verdict in VERDICTS))
CIFAR, PATCHES, DIGITS, GPT = "CIFAR-10", "patches", "digits", "small GPTs"


class Evidence(NamedTuple):
    """Curves that speak for a row: of one sweep, axis, optimizer and variant.

    take: the parameterization of the row, "" if it is none of the sweep. others: those that are shown beside it.
    """

    where: str
    sweep: str
    axis: str = "depth"
    optimizer: str = "sgd"
    variant: str = ""
    take: str = "depth_mup"
    others: Sequence[str] = ("sp", "mup")


def _vit(norm: str) -> tuple[Evidence, ...]:
    """Of depthmup's own rule for Adam (lr_depth -0.5), and of the papers' (lr_depth 0), also with a cosine."""
    adam = Evidence(CIFAR, "vit", optimizer="adam", variant=f"norm {norm}, lr_depth -0.5", others=())
    paper = adam._replace(where=f"{CIFAR} with lr_depth 0", variant=f"norm {norm}, lr_depth 0")
    cosine = paper._replace(where=f"{CIFAR} with lr_depth 0 and a cosine", sweep="vit_cosine", variant=f"norm {norm}")
    unscaled = adam._replace(variant=f"norm {norm}, lr_depth None", take="", others=("mup",))
    patches = Evidence(PATCHES, "patches16_vit", optimizer="adam", variant=f"norm {norm}")
    return (adam, paper, cosine, unscaled, patches)


def _take(branches: Branches, family: FamilyName) -> str:
    """The cell of what to take."""
    return f"`{recommended.take(branches, family)}`"


WIDTH = Evidence(DIGITS, "digits_transfer", axis="width", take="mup", others=("sp",))
# {(model, optimizer, what to take): its evidence}
ROWS: dict[tuple[str, str, str], tuple[Evidence, ...]] = {
    ("residual, branches of one layer without a norm (ResidualMLP, SimpleResNet)", "SGD", _take("one", "sgd")): (
        Evidence(CIFAR, "simple_resnet"),
        Evidence(f"{CIFAR} at width 128", "simple_resnet_128", others=()),
        Evidence(PATCHES, "patches16_simple_resnet"),
        Evidence(DIGITS, "digits_transfer"),
    ),
    ("the same (ResidualMLP)", "Adam", _take("one", "adam")): (Evidence(DIGITS, "digits_transfer", optimizer="adam"),),
    ("ViT with layer norm", "Adam", _take("several", "adam")): _vit("layer"),
    ("ViT without norm", "Adam", _take("several", "adam")): _vit("none"),
    ("transformer (language)", "AdamW", _take("several", "adam")): (
        Evidence(GPT, "study", optimizer="adamw", take="completep", others=("depth_mup", "sp")),
    ),
    ("transformer (language)", "Muon", _take("several", "muon")): (
        Evidence(GPT, "study", optimizer="muon", take="depth_ode", others=("depth_mup",)),
    ),
    ("any of these, width alone", "SGD", _take("alone", "sgd")): (
        WIDTH._replace(where=CIFAR, sweep="simple_resnet"),
        WIDTH,
    ),
    ("any of these, width alone", "Adam, AdamW", _take("alone", "adam")): (
        WIDTH._replace(optimizer="adam"),
        WIDTH._replace(where=GPT, sweep="study", optimizer="adamw"),
    ),
    ("ResNet with batch norm", "SGD", "undecided: compare `mup` and `depth_mup`"): (
        Evidence(CIFAR, "resnet", variant="norm batch", others=("mup",)),
        Evidence(f"{CIFAR} with beta0 1/16", "resnet_beta0", others=("mup",)),
    ),
    ("plain network without skip connections", "SGD", "none is sure: `mup`, and tune at two depths"): (
        Evidence(f"{CIFAR} with lr_depth 0", "plain", take="", others=("am_mup",)),
    ),
}


def table(sweeps: Mapping[str, Sweep]) -> str:
    """The table, of the sweeps of documents.py, of both papers' figures and of the language study."""
    curves: dict[str, Sequence[TransferCurve]] = {name: sweep.curves for name, sweep in sweeps.items()}
    for paper in page.PAPERS:
        curves |= {name: sweep.curves for name, sweep in page.read(paper).items()}
    curves["study"] = language.published()
    return markdown(COLUMNS, [(*choice, *_words(curves, evidence, choice[-1])) for choice, evidence in ROWS.items()])


def _words(curves: Mapping[str, Sequence[TransferCurve]], evidence: Sequence[Evidence], take: str) -> list[str]:
    """A cell for each verdict: the sweeps in which each parameterization has it, with the costs of the row's own.

    take: the cell of the row, whose parameterization is not named. Others stand where they transfer, or do not. Those
    with the same sweeps share a list.
    """
    of_verdict: dict[str, dict[str, list[str]]] = {verdict: {} for verdict in VERDICTS}
    for one in evidence:
        results = {c.parameterization: c.result for c in curves[one.sweep]
                   if (c.axis, c.optimizer, c.variant) == (one.axis, one.optimizer, one.variant)}  # fmt: skip
        for name in (name for name in (one.take, *one.others) if name in results):
            verdict, cost = results[name].verdict, results[name].cost
            if name == one.take or verdict != "undecided":
                shown = f"{one.where} ({cost})" if name == one.take and cost else one.where
                of_verdict[verdict].setdefault(name, []).append(shown)
    cells = []
    for sweeps in of_verdict.values():
        alike: dict[str, list[str]] = {}
        for name, where in sweeps.items():
            alike.setdefault(", ".join(where), []).append(f"`{name}`")
        cells.append(". ".join(where if names == [take] else f"{', '.join(names)}: {where}"
                               for where, names in alike.items()))  # fmt: skip
    return cells

"""The prior of the scaling law, and published rules: a file against the rows, tables and sources that it comes from."""

import ast
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

from depthmup.fit import published_rules
from depthmup.fit.published_rules import PUBLISHED_RULES
from depthmup.rules.batch_rules import NOTHING, RULES, Run
from depthmup.rules.parameterization import TABLES, parameterization
from depthmup.settings import from_config
from experiments import law_prior, paper_a, paper_b, published
from experiments.law_prior import ANY, AXES, FAMILIES, Measured

FILE = tomllib.loads(law_prior.FILE.read_text())


@pytest.fixture(scope="module")
def written():
    """The evidence in the file."""
    return [
        Measured(e["family"], e["sources"][0], name, e["axis"], e["optimizer"], e["claim"], exponent, error)
        for e in FILE["evidence"]
        for name, exponent, error in zip(e["curves"], e["exponents"], e["errors"], strict=True)
    ]


def compare(written, computed):
    """Every curve that was computed is in the file with its exponent and error."""
    assert computed
    for m in computed:
        numbers = [(w.exponent, w.error) for w in written if w[:1] + w[2:6] == m[:1] + m[2:6]]
        assert any(np.allclose(w, (m.exponent, m.error), rtol=0.01, atol=1e-3) for w in numbers), m


def test_the_evidence_is_that_of_the_rows(written):
    """Of the sweeps that take seconds."""
    computed = law_prior.measured([law_prior.transformers, law_prior.batch_and_steps, law_prior.publications])
    compare(written, computed)
    experiments = {m.experiment for m in computed}
    assert len(computed) == sum(m.experiment in experiments for m in written)


@pytest.mark.parametrize(
    ("paper", "name", "found"),
    [
        # lr_depth of depth_mup is an axis there, and muP without norms does not train at every depth
        (paper_a.PAPER, "vit", {("depth", "muP alone"): 1, ("depth", "depth rule"): 2}),
        # rates without the table's power of depth
        (paper_b.PAPER, "plain_base", {("depth", "am_mup"): 1}),
        (paper_b.PAPER, "screen_one_over_depth", {}),  # an alpha of its own
    ],
)
def test_the_evidence_of_figures_is_in_units_of_the_base(written, paper, name, found):
    sweep = published.read(paper.rows / name, from_config(paper.sweeps[name]()), extended=True)
    experiment = f"{paper.name}, {sweep.settings.model.name}"
    computed = [*law_prior.of_curves(sweep.curves, experiment, "", sweep.settings)]
    claims = [(m.axis, m.claim) for m in computed]
    assert {of: claims.count(of) for of in claims} == found
    if computed:
        compare(written, computed)
    drifts = [c.result.drift.octaves_per_doubling for c in sweep.curves]
    for m in computed if "am_mup" in {m.claim for m in computed} else ():
        np.testing.assert_allclose(m.exponent, drifts[0] + 1.5)


def test_the_sds_are_those_of_the_evidence(written):
    of = law_prior.beliefs(law_prior.cells(written))
    for axis, named in law_prior.prior(of).items():
        assert FILE[axis].keys() == named.keys()
        for name, families in named.items():
            assert FILE[axis][name].keys() == families.keys()
            for family, cell in families.items():
                entry = FILE[axis][name][family]
                assert entry["claim"] == cell[1]
                np.testing.assert_allclose([entry["mean"], entry["sd"]], of[cell][:2], rtol=0.03, atol=1e-3)
                assert len(of[cell].families) >= 2


def test_the_estimator_is_the_one_that_leaving_families_out_chooses(written):
    scores = {of["sd"]: law_prior.LeftOut(of["families"], of["inside"], of["score"]) for of in FILE["left_out"]}
    assert scores.keys() == law_prior.ESTIMATORS.keys()
    assert law_prior.ESTIMATORS[law_prior.chosen(scores)] is law_prior.spread
    cells = law_prior.cells(written)
    score = law_prior.left_out(cells, law_prior.spread)
    np.testing.assert_allclose(score, scores[law_prior.chosen(scores)], rtol=0.05)
    assert score.families == sum(len(of) for of in cells.values() if len(of) >= law_prior.LEAST)


def test_no_law_is_tested_on_its_evidence():
    """Nor do the rows of jumps come in, in which all sizes move."""
    sources = " ".join(source for e in FILE["evidence"] for source in e["sources"]).lower()
    for target in ("step_law", "steplaw", "2503.04715", "scalebench", "active-sl", "gemstone", "marin", "nanochat"):
        assert target not in sources
    assert "jump" not in sources
    tree = ast.parse(Path(law_prior.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert "step_law" not in imported
    for name in (source for e in FILE["evidence"] for source in e["sources"] if source.startswith("docs/")):
        assert (law_prior.ROOT / name).exists()


def lr_exponent(name, axis, family):
    """Of hidden weights in branches, by the public function, from a base of 64."""
    p = parameterization(name, base_width=64, base_depth=64)
    sizes = {"width": 64, "depth": 64, axis: 256}
    return math.log2(p.leaf(role="hidden", in_branch=True, family=family, fan_in=sizes["width"], **sizes).lr) / 2


def test_the_means_are_those_of_the_tables():
    for axis in ("width", "depth"):
        for name in (ANY, *TABLES):
            for family, entry in FILE[axis][name].items():
                if name in ("mup", "ntp", "depth_mup", "depth_ode", "completep", "am_mup") and axis == "depth":
                    assert entry["mean"] == 0
                elif name in (ANY, "sp") or (name in ("depth_sp", "am_mup") and axis == "width"):
                    np.testing.assert_allclose(entry["mean"], lr_exponent("depth_mup", axis, family), atol=1e-3)
                else:
                    assert entry["mean"] == 0
    assert FILE["width"][ANY]["adam"]["mean"] == -1
    assert FILE["depth"][ANY]["adam"]["mean"] == -0.5


def test_the_means_of_batch_size_and_steps_are_those_of_the_rules():
    """By what a run of twice the batch size, or twice the steps, gets."""
    for family in FAMILIES:
        moving = [name for name, rows in RULES.items() for row in rows if family in row.families and row.lr != NOTHING]
        batch, steps = [], []
        for name in moving:
            for sizes, exponents in (((128, 500), batch), ((64, 2000), steps)):
                run = Run(*sizes, 64, 1000, name)
                if {"examples": run.ratios.examples, "batch size": run.ratios.batch}.get(run.row(family).fixed, 1) == 1:
                    exponents.append(math.log2(run.factors(family)["learning_rate"]))
        over_steps = np.mean(steps) if steps else 0
        np.testing.assert_allclose(FILE["steps"][ANY][family]["mean"], over_steps, atol=1e-3)
        np.testing.assert_allclose(FILE["batch_size"][ANY][family]["mean"], np.mean(batch) + over_steps, atol=1e-3)


@pytest.mark.parametrize("estimate", law_prior.ESTIMATORS.values())
def test_planted_scatter(estimate):
    """Many families with large errors: the scatter is told apart from them."""
    rng = np.random.default_rng(0)
    errors = rng.uniform(0.02, 0.4, (400, 2))
    exponents = -0.5 + 0.3 * rng.standard_normal((400, 1)) + errors * rng.standard_normal((400, 2))
    families = {
        str(i): [Measured(str(i), "", "", "width", "adam", ANY, *pair) for pair in zip(*of, strict=True)]
        for i, of in enumerate(zip(exponents.tolist(), errors.tolist(), strict=True))
    }
    assert estimate(-0.5, families) == pytest.approx(0.3, abs=0.04)
    few = {name: families[name] for name in ("0", "1")}
    assert law_prior.median(-0.5, few) > law_prior.largest(-0.5, few)


def test_what_the_engine_needs():
    """Finite numbers for every axis and family, and a row for parameterizations that an axis does not name."""
    for axis in AXES:
        for families in FILE[axis].values():
            for entry in families.values():
                assert math.isfinite(entry["mean"])
                assert 0 < entry["sd"] < 5
        assert FILE[axis][ANY].keys() == set(FAMILIES)


def rule(name, family="adam"):
    (found,) = (r for r in PUBLISHED_RULES if r.name == name and family in r.families)
    return found


def test_rules_need_numpy_at_most():
    tree = ast.parse(Path(published_rules.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "collections.abc", "typing"}


def test_each_rule_is_there_once_with_its_source():
    pairs = [(r.name, family) for r in PUBLISHED_RULES for family in r.families]
    assert len(pairs) == len(set(pairs))
    for r in PUBLISHED_RULES:
        assert r.source
        assert r.exponents
        assert r.along.keys() <= r.exponents.keys()


def test_rules_of_batch_size_and_tokens_are_those_of_batch_rules():
    for name, rows in RULES.items():
        for row in rows:
            for family in {"adam", "sgd", "muon"} & {*row.families} if name != "none" else ():
                powers = {"batch_size": row.lr.batch, "tokens": row.lr.examples}
                if row.fixed:
                    del powers["batch_size" if row.fixed == "batch size" else "tokens"]
                exponents = rule(name, family).exponents
                assert {size: exponents[size] for size in powers} == powers
                assert exponents.keys() - powers.keys() <= {"depth", "parameters"}


@pytest.mark.parametrize(
    ("name", "sizes", "printed", "tolerance"),
    [
        # the mean prediction of the 1,000 laws in its repository, for the example of its README
        ("Step Law", {"parameters": 7e9, "tokens": 1.4e12}, 0.00094, 0.03),
        # table 2: 7 and 67 billion parameters, 2 trillion tokens; C is 72 L d^2 + 12 L d n a token
        ("DeepSeek LLM", {"parameters": (72 * 30 * 4096**2 + 12 * 30 * 4096**2) / 6, "tokens": 2e12}, 4.2e-4, 0.02),
        ("DeepSeek LLM", {"parameters": (72 * 95 * 8192**2 + 12 * 95 * 8192 * 4096) / 6, "tokens": 2e12}, 3.2e-4, 0.04),
        # "5e-3 for a ~100M parameter model", one of its authors by a reader
        ("Porian et al.", {"parameters": 1e8}, 5e-3, 0.03),
        # figure 2: grids of factors of 2
        ("Power scheduler", {"batch_size": 128, "tokens": 2e9}, 0.0128, 0.3),
        ("Power scheduler", {"batch_size": 128, "tokens": 256e9}, 0.0008, 0.3),
    ],
)
def test_rules_have_the_rates_of_their_sources(name, sizes, printed, tolerance):
    assert rule(name).rate(sizes) == pytest.approx(printed, rel=tolerance)


def test_rules_have_the_ratios_of_their_sources():
    # arXiv 2409.19913 by HyperP's abstract; equation 3 of arXiv 2507.17702
    assert 8 ** rule("token_horizon").exponents["tokens"] == pytest.approx(0.514057, rel=1e-5)
    ling = rule("Ling, mixture of experts")
    assert ling.rate({"parameters": 1e9, "tokens": 1e10}) == pytest.approx(1.1576 * 6e19**-0.1529)
    # microsoft/ArchScale c2ec1d69: the square root of base depth over depth, and tokens x 4
    hyperp = rule("hyperp", "muon").exponents
    assert 4 ** hyperp["depth"] == 0.5
    assert 6e-4 * 4 ** hyperp["tokens"] == pytest.approx(3.850279e-4)
    # Scion's two laws are one where the batch size follows the tokens
    scion, best = rule("Scion", "muon"), rule("Scion at its best batch size", "muon")
    followed = scion.exponents["tokens"] + best.along["tokens"]["batch_size"] * scion.exponents["batch_size"]
    assert round(followed, 2) == best.exponents["tokens"]
    # arXiv 2609.37745: s_D = -1 + 1 / (3 alpha_r), with the alpha_r = .35 of SGD
    assert rule("one-third data scaling", "sgd").exponents["tokens"] == pytest.approx(-1 + 1 / (3 * 0.35), abs=0.01)
    # one rate by muP is what its table says of hidden weights; in units of the base nothing moves
    assert rule("muP as one rate").exponents["width"] == lr_exponent("mup", "width", "adam")
    for name in ("muP", "depth-muP", "CompleteP", "MiniCPM"):
        assert set(rule(name).exponents.values()) == {0.0}
        assert rule(name).parameterization in TABLES
    with pytest.raises(ValueError, match="CompleteP says how a learning rate changes, not which one is best"):
        rule("CompleteP").rate({"width": 64, "depth": 2})


def test_the_line_of_a_rule():
    """Along which its exponents are compared: Step Law's batch size follows the tokens, more tokens at one batch size
    are steps, a larger batch of as many tokens takes fewer."""
    assert rule("Step Law").doublings("tokens") == pytest.approx({"batch_size": 0.571, "steps": 0.429})
    assert rule("Step Law").doublings("parameters") == {"parameters": 1}
    assert rule("token_horizon").doublings("tokens") == {"steps": 1}
    assert rule("nanochat").doublings("batch_size") == {"batch_size": 1, "steps": -1}
    assert rule("Porian et al.").doublings("parameters") == pytest.approx(
        {"parameters": 1, "batch_size": 0.703, "steps": 0.297}
    )
    assert rule("CompleteP").doublings("width") == {"width": 1}

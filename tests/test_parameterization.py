"""Golden tables: our rules, the alpha family, equality at the base. Other packages' rules: test_oracles.py."""

from typing import get_args

import pytest

from depthmup.rules.parameterization import FAMILIES, ROLES, TABLES, Name, Parameterization, Table, parameterization

M, M_L, BASE, BASE_L = 8, 4, 32, 2
MATRIX_ROLES = ("input", "hidden", "output", "readout")


def factors(name, role, family, in_branch=False, m=M, m_l=M_L, **options):
    p = parameterization(name, base_width=BASE, base_depth=BASE_L, **options)
    return p.leaf(role=role, in_branch=in_branch, width=BASE * m, depth=BASE_L * m_l, fan_in=BASE * m, family=family)


# docs/rules.md section 0 at m = 8, m_L = 4, alpha = 1/2, gamma0 = 1: (SGD LR, Adam LR, eps).
OURS = {
    ("input", False): (8, 1, 1 / 8),
    ("hidden", False): (1, 1 / 8, 1 / 8),
    ("output", False): (1 / 8, 1 / 8, 1),
    ("readout", False): (8, 1, 1 / 8),
    ("vector", False): (8, 1, 1 / 8),
    ("scalar", False): (1, 1, 1),
    ("input", True): (8, 1 / 2, 1 / 16),
    ("hidden", True): (1, 1 / 16, 1 / 16),
    ("output", True): (1 / 8, 1 / 16, 1 / 2),
    ("vector", True): (8, 1 / 2, 1 / 16),
    ("scalar", True): (1, 1 / 2, 1 / 2),
}


@pytest.mark.parametrize(("key", "expected"), OURS.items())
def test_depth_mup_is_our_table(key, expected):
    sgd, adam = (factors("depth_mup", key[0], family, key[1]) for family in ("sgd", "adam"))
    assert (sgd.lr, adam.lr, adam.eps) == pytest.approx(expected, rel=1e-12)
    assert (sgd.lr * sgd.decay, adam.lr * adam.decay) == pytest.approx((1, 1), rel=1e-12)


# docs/rules.md section 0 at m = 8, m_L = 4, alpha = 1/2: (Muon LR, Adafactor LR, Muon eps).
OTHERS = {
    ("input", False): (8**0.5, 1, 8**-0.5),
    ("hidden", False): (1, 8**-0.5, 1),
    ("output", False): (8**-0.5, 8**-0.5, 8**0.5),
    ("readout", False): (8**0.5, 1, 8**-0.5),
    ("vector", False): (8**0.5, 1, 8**-0.5),
    ("scalar", False): (1, 1, 1),
    ("hidden", True): (1 / 2, 8**-0.5 / 2, 1 / 2),
    ("scalar", True): (1 / 2, 1 / 2, 1 / 2),
}


@pytest.mark.parametrize(("key", "expected"), OTHERS.items())
def test_muon_and_adafactor(key, expected):
    role, in_branch = key
    muon, adafactor = (factors("depth_mup", role, family, in_branch) for family in ("muon", "adafactor"))
    assert (muon.lr, adafactor.lr, muon.eps) == pytest.approx(expected, rel=1e-12)
    assert (muon.lr * muon.decay, adafactor.lr * adafactor.decay) == pytest.approx((1, 1), rel=1e-12)
    assert adafactor.eps == factors("depth_mup", role, "adam", in_branch).eps
    rich = [factors("depth_ode", role, family, in_branch, gamma0=3.0).lr for family in ("muon", "adam")]
    flat = [factors("depth_ode", role, family, in_branch).lr for family in ("muon", "adam")]
    assert rich[0] / flat[0] == pytest.approx(rich[1] / flat[1], rel=1e-12)
    assert {factors("sp", role, family, in_branch).lr for family in ("muon", "adafactor")} == {1}
    with pytest.raises(ValueError, match="family only, not for 'muon': use mup or depth_mup"):
        factors("am_mup", role, "muon", in_branch)


# Paper A's Adam, that of microsoft/mup (docs/rules.md section 1) with the branch factor m_L^-1/2: lr_depth=0 at m = 8.
PAPER_A = {
    ("input", False): 1,
    ("hidden", False): 1 / 8,
    ("output", False): 1 / 8,
    ("readout", False): 1,
    ("vector", False): 1,
    ("scalar", False): 1,
    ("input", True): 1,
    ("hidden", True): 1 / 8,
    ("output", True): 1 / 8,
    ("vector", True): 1,
    ("scalar", True): 1,
}


@pytest.mark.parametrize(("key", "lr"), PAPER_A.items())
@pytest.mark.parametrize("m_l", [1, M_L, 64])
def test_the_adam_rule_of_paper_a(key, lr, m_l):
    """No power of depth in any learning rate. SGD's are ours, and so are eps and the forward pass."""
    adam = factors("depth_mup", key[0], "adam", key[1], m_l=m_l, lr_depth=0.0)
    assert (adam.lr, adam.decay) == pytest.approx((lr, 1 / lr), rel=1e-12)
    assert adam.eps == factors("depth_mup", key[0], "adam", key[1], m_l=m_l).eps
    sgd = factors("depth_mup", key[0], "sgd", key[1], m_l=m_l, lr_depth=0.0)
    assert sgd == factors("depth_mup", key[0], "sgd", key[1], m_l=m_l)
    p = parameterization("depth_mup", base_depth=BASE_L, lr_depth=0.0)
    assert p.forward_factors(width=8, depth=BASE_L * m_l).branch == pytest.approx(m_l**-0.5, rel=1e-12)


def test_lr_depth_is_the_exponent_in_branches():
    inside, outside = (factors("depth_ode", "hidden", "sgd", b, lr_depth=-0.25) for b in (True, False))
    assert (inside.lr, inside.decay) == pytest.approx((M_L**-0.25, M_L**0.25), rel=1e-12)
    assert (outside.lr, outside.init, inside.init) == (1, 1, 1)
    assert factors("mup", "hidden", "adam", True, alpha=0.5, lr_depth=0.0).lr == pytest.approx(1 / 8, rel=1e-12)


def test_depth_ratio_is_that_of_blocks():
    """Counted alike at the base and at the depth: 9 + 5 blocks over 2 + 5."""
    p = parameterization("depth_mup", base_depth=2, blocks=lambda depth: depth + 5)
    assert p.ratios(1, 9) == (1, 2)
    assert p.forward_factors(width=1, depth=9).branch == pytest.approx(2**-0.5, rel=1e-12)
    leaf = p.leaf(role="hidden", in_branch=True, width=1, depth=9, fan_in=1, family="adam")
    assert (leaf.lr, leaf.eps) == pytest.approx((2**-0.5, 2**-0.5), rel=1e-12)
    absorbed = p.in_form("absorbed").leaf(role="hidden", in_branch=True, width=1, depth=9, fan_in=1)
    assert absorbed.init == pytest.approx(2**-0.5, rel=1e-12)
    am = parameterization("am_mup", base_depth=2, blocks=lambda depth: 3 * depth)
    assert am.leaf(role="readout", in_branch=False, width=1, depth=8, fan_in=1).lr == pytest.approx(1 / 8, rel=1e-12)


def test_defaults_hold_however_it_is_made():
    assert Parameterization("depth_mup") == parameterization("depth_mup")
    with pytest.raises(ValueError, match="unknown parameterization 'bogus'"):
        Parameterization("bogus")


@pytest.mark.parametrize("alpha", [0.5, 1.0])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("role", ROLES)
def test_completep_of_every_family(role, family, alpha):
    """The LR is that of depth_ode, and LR x decay keeps what is not a power of width: gamma0 and the power of m_L."""
    kept = {"sgd": 9.0 * M_L ** (2 * alpha - 1), "shampoo2": 1 / M_L}.get(family, 3.0 * M_L ** (alpha - 1))
    f, ode = (factors(name, role, family, True, alpha=alpha, gamma0=3.0) for name in ("completep", "depth_ode"))
    assert (f.init, f.multiplier, f.lr, f.eps) == (ode.init, ode.multiplier, ode.lr, ode.eps)
    assert f.lr * f.decay == pytest.approx(kept, rel=1e-12)


@pytest.mark.parametrize(
    ("family", "linear", "gamma", "storage", "half", "one"),
    [
        ("sgd", True, 2, 2, 0, 1),
        ("adam", False, 1, 1, -0.5, 0),
        ("muon", False, 1, 1, -0.5, 0),
        ("adafactor", False, 1, 0, -0.5, 0),
        ("shampoo2", False, 0, 0, -1, -1),
    ],
)
def test_powers_of_a_family(family, linear, gamma, storage, half, one):
    """docs/theory.md sections 1 and 1.3: of gamma0, of the storage factor, and of m_L at alpha 1/2 and 1."""
    kind = FAMILIES[family]
    assert (kind.linear, kind.gamma, kind.storage) == (linear, gamma, storage)
    assert (kind.depth(0.5), kind.depth(1.0)) == (half, one)
    depths = [parameterization(name).depth_power(family) for name in ("mup", "depth_mup", "depth_ode")]
    assert depths == [0, half, one]
    assert parameterization("depth_mup", lr_depth=-0.25).depth_power(family) == -0.25


@pytest.mark.parametrize("name", sorted(TABLES))
def test_on_the_stream(name):
    """What acts on the stream in every block adds up over the blocks: every LR goes as 1/m_L, and nothing else."""
    p = parameterization(name, base_width=BASE, base_depth=BASE_L)
    ruled = p.alpha is not None and not p.arithmetic_mean
    for family in p.table.families:
        for role in ("vector", "scalar"):
            sizes = {"role": role, "in_branch": False, "width": M * BASE, "fan_in": 1, "family": family}
            one = p.leaf(**sizes, depth=BASE_L, in_stream=True)
            leaf = p.leaf(**sizes, depth=M_L * BASE_L, in_stream=True)
            if not ruled:
                assert leaf == p.leaf(**{**sizes, "in_branch": True}, depth=M_L * BASE_L)
                continue
            assert leaf.lr == pytest.approx(one.lr / M_L, rel=1e-12)
            assert leaf.decay == pytest.approx(one.decay * (1 if name == "completep" else M_L), rel=1e-12)
            assert (leaf.init, leaf.multiplier, leaf.eps) == (one.init, one.multiplier, one.eps)
    assert parameterization("depth_mup", lr_depth=-0.25).depth_power("adam", in_stream=True) == -1


def test_a_parameterization_of_ones_own(monkeypatch):
    """A row of TABLES is all that it takes."""
    monkeypatch.setitem(TABLES, "mine", Table(alpha=0.75, families=("adam",)))
    leaf = factors("mine", "hidden", "adam", True)
    assert (leaf.lr, leaf.eps) == pytest.approx((M_L**-0.25 / M, M_L**-0.75 / M), rel=1e-12)
    with pytest.raises(ValueError, match="mine is defined for the adam family only, not for 'sgd': use another param"):
        factors("mine", "hidden", "sgd")
    assert set(get_args(Name)) == {*TABLES} - {"mine"}


@pytest.mark.parametrize("alpha", [0.5, 0.75, 1.0])
@pytest.mark.parametrize("family", ["sgd", "adam"])
def test_alpha_family(alpha, family):
    """docs/theory.md section 1.1: the branch LR in three storage forms, up to eta_0 gamma_0."""
    n, depth = 64.0, 16.0
    expected = {
        "canonical": n * depth ** (2 * alpha - 1) if family == "sgd" else n**-0.5 * depth ** (alpha - 1),
        "fan_in": depth ** (2 * alpha - 1) if family == "sgd" else depth ** (alpha - 1) / n,
        "absorbed": 1 / depth if family == "sgd" else 1 / (n * depth),
    }
    p = parameterization("depth_mup", alpha=alpha)
    for form, lr in expected.items():
        leaf = p.in_form(form).leaf(role="hidden", in_branch=True, width=n, depth=depth, fan_in=n, family=family)
        assert leaf.lr == pytest.approx(lr, rel=1e-12), form


@pytest.mark.parametrize("name", sorted(TABLES))
def test_all_equal_sp_at_the_base(name):
    p = parameterization(name, base_width=BASE, base_depth=BASE_L)
    forward = p.forward_factors(width=BASE, depth=BASE_L)
    assert (forward.branch, forward.output) == (1, 1)
    for family in p.table.families:
        for role in ROLES:
            for in_branch in (False, True):
                leaf = p.leaf(role=role, in_branch=in_branch, width=BASE, depth=BASE_L, fan_in=BASE, family=family)
                assert tuple(leaf) == (1, 1, 1, 1, 1), (family, role)


@pytest.mark.parametrize("name", ["sp", "mup", "ntp"])
@pytest.mark.parametrize("role", ROLES)
def test_no_power_of_depth(name, role):
    for family in ("sgd", "adam"):
        assert factors(name, role, family, True, m_l=1) == factors(name, role, family, True, m_l=64)
    assert parameterization(name).forward_factors(width=64, depth=64).branch == 1


def test_ntp_is_mup_with_gamma_of_width():
    """Canonical LRs of all weights are eta_0 (docs/theory.md section 1)."""
    p = parameterization("ntp").in_form("canonical")
    for role, fan_in in (("hidden", 64), ("readout", 64)):
        leaf = p.leaf(role=role, in_branch=False, width=64, depth=4, fan_in=fan_in, family="sgd")
        assert leaf.lr == pytest.approx(1, rel=1e-12)


def test_am_mup():
    """One LR times m_L^-3/2; branch weights Var = c / (K fan_in), or c / (K^2 fan_in) (docs/rules.md sections 0, 4)."""
    for role in ROLES:
        for in_branch in (False, True):
            f = factors("am_mup", role, "sgd", in_branch)
            assert f.lr == pytest.approx(M_L**-1.5, rel=1e-12)
            assert f.lr * f.decay == pytest.approx(1, rel=1e-12)
            scaled = in_branch and role in (*MATRIX_ROLES, "fixed")
            assert f.init == pytest.approx(M_L**-0.5 if scaled else 1, rel=1e-12)
    assert factors("am_mup", "hidden", "sgd", True, alpha=1.0).init == pytest.approx(1 / M_L, rel=1e-12)
    assert factors("am_mup", "hidden", "sgd", True, lr_depth=-1.0).lr == pytest.approx(1 / M_L, rel=1e-12)
    assert parameterization("am_mup").forward_factors(width=64, depth=64).branch == 1


@pytest.mark.parametrize("family", ["sgd", "adam"])
def test_gamma0(family):
    """SGD LR x gamma0^2, Adam LR x gamma0, eps / gamma0; not behind the output factor (docs/rules.md section 0)."""
    power = 2 if family == "sgd" else 1
    for role, in_branch in (("hidden", True), ("input", False), ("readout", False), ("vector", True)):
        plain, rich = (factors("depth_mup", role, family, in_branch, gamma0=g) for g in (1.0, 3.0))
        assert rich.lr == pytest.approx(plain.lr * 3.0**power, rel=1e-12)
        assert rich.eps == pytest.approx(plain.eps / 3.0, rel=1e-12)
        assert rich.lr * rich.decay == pytest.approx(1, rel=1e-12)
    assert factors("depth_mup", "scalar", family, gamma0=3.0) == (1, 1, 1, 1, 1)


def test_attention():
    p = parameterization("mup", base_head_dim=16)
    assert p.forward_factors(width=64, depth=4, head_dim=16).attention == pytest.approx(16**-0.5, rel=1e-12)
    assert p.forward_factors(width=64, depth=4, head_dim=64).attention == pytest.approx(16**0.5 / 64, rel=1e-12)
    sp = parameterization("sp", base_head_dim=16)
    assert sp.forward_factors(width=64, depth=4, head_dim=64).attention == pytest.approx(64**-0.5, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parameterization("depth-mup"), "did you mean 'depth_mup'"),
        (lambda: parameterization("mup", base_width=0), "base_width must be at least 1"),
        (lambda: parameterization("mup", alpha=0.3), "alpha must be between 1/2 and 1"),
        (lambda: parameterization("mup", gamma0=0.0), "gamma0 must be positive"),
        (lambda: parameterization("mup", lr_depth=-1.0), "lr_depth is the exponent of a depth rule, which 'mup' lacks"),
        (lambda: parameterization("mup").forward_factors(width=0, depth=1), "width must be at least 1"),
        (lambda: parameterization("mup").forward_factors(width=1, depth=0), "depth must be at least 1"),
        (lambda: parameterization("mup").in_form("cannonical"), "did you mean 'canonical'"),
        (lambda: factors("am_mup", "hidden", "adam"), "am_mup is defined for the sgd family only"),
        (lambda: parameterization("Depth_muP"), "did you mean 'depth_mup'"),
        (lambda: factors("mup", "hiden", "sgd"), "did you mean 'hidden'"),
        (lambda: factors("mup", "hidden", "adamw"), "unknown optimizer family"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", ["sgd", "adam"])
def test_depth_sp_is_sp_with_scaled_branches(role, family):
    assert factors("depth_sp", role, family, True) == factors("sp", role, family, True, alpha=0.5)
    p = parameterization("depth_sp", base_depth=BASE_L)
    assert p.forward_factors(width=8, depth=BASE_L * M_L).branch == pytest.approx(M_L**-0.5, rel=1e-12)

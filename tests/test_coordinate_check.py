"""Role by role, in width and depth, SGD and Adam; and "not ok" for each planted wrong exponent.

Parameterizations and planted faults differ in traced factors only, so all checks of one model and optimizer share their
compiled programs.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup as dm
from depthmup.measure import CoordinateReport, Probe
from depthmup.measure.coordinate_check import _open
from depthmup.measure.probe import feature_changes
from depthmup.measure.slope import Slope, SlopeEstimate
from depthmup.train.build import task_of
from depthmup.train.check import probe_at
from tests import tiny

optimized = pytest.mark.usefixtures("optimized")  # trainings of the library's models run for longer than they compile
LONG = dict(widths=(64, 128, 256), depths=(4, 8, 16, 32), width=128, depth=4, steps=(1, 10), max_seeds=128)
SHORT = dict(widths=(32, 128), depths=(4, 16), width=128, depth=4, steps=(1, 3), seeds=16, tolerance=0.2)


@functools.cache
def settings(name, norm, optimizer, eps=1e-8):
    return tiny.settings(
        parameterization__name=name,
        model__norm=norm,
        model__use_bias=True,
        optimizer__eps=eps,
    )


def check(name, norm, optimizer, fault=None, eps=1e-8, sizes=SHORT):
    """`fault`: (factor, condition on a spec, width and depth -> what the factor is multiplied by)."""
    s = settings(name, norm, optimizer, eps)

    def probe(width, depth):
        plain = probe_at(s, optimizer, width, depth)
        if fault is None:
            return plain
        factor, condition, wrong = fault
        specs = specs_at(norm, width, depth)

        def hyper(group, seed):
            h = plain.hyper(group, seed)
            broken = jax.tree.map(
                lambda f, spec: np.float32(f * wrong(width, depth)) if condition(spec) else f,
                getattr(h.factors, factor),
                specs,
            )
            return h._replace(factors=h.factors._replace(**{factor: broken}))

        return plain._replace(hyper=hyper)

    return dm.coordinate_check(probe, **sizes, title=name)


@functools.cache
def specs_at(norm, width, depth):
    s = settings("mup", norm, "sgd")
    return task_of(dataclasses.replace(s, model=dataclasses.replace(s.model, width=width, depth=depth))).specs


def bad(report):
    return {(s.axis, s.group) for s in report.slopes if s.answer == "not ok"}


def assert_ok(name, norm, optimizer, sizes):
    report = check(name, norm, optimizer, sizes=sizes)
    assert report.ok, str(report)
    judged = {(s.axis, s.group, s.step) for s in report.slopes if s.judged}
    groups = {"input", "branch/hidden", "branch/vector bias", "vector bias", "readout", "scalar", "all"}
    groups |= {"branch/vector scale"} if norm == "layer" else set()
    expected = {(axis, group, step) for axis in ("width", "depth") for group in groups for step in sizes["steps"]}
    assert judged == expected


@optimized
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_ok(optimizer):
    assert_ok("depth_mup", "layer", optimizer, SHORT)


@optimized
def test_sp_is_not_ok_in_width_and_depth():
    report = check("sp", "layer", "adam")
    assert {("width", "all"), ("depth", "all"), ("width", "readout")} <= bad(report), str(report)


@optimized
def test_mup_is_not_ok_in_depth():
    failing = bad(check("mup", "layer", "adam"))
    assert {("depth", "all"), ("depth", "branch/hidden")} <= failing
    assert {axis for axis, _ in failing} == {"depth"}


@optimized
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("norm", ["none", "layer"])
class TestLong:
    """Ten steps of wider and deeper networks, with and without norm."""

    @pytest.mark.parametrize("name", ["depth_mup", "depth_ode"])
    def test_ok(self, name, norm, optimizer):
        assert_ok(name, norm, optimizer, LONG)

    def test_sp_is_not_ok_in_width_and_depth(self, norm, optimizer):
        report = check("sp", norm, optimizer, sizes=LONG)
        assert {axis for axis, _ in bad(report)} == {"width", "depth"}, str(report)

    def test_mup_is_not_ok_in_depth(self, norm, optimizer):
        report = check("mup", norm, optimizer, sizes=LONG)
        assert {axis for axis, _ in bad(report)} == {"depth"}, str(report)


@optimized
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
class TestPlantedFaults:
    def test_hidden_depth_factor(self, optimizer):
        fault = ("lr", lambda s: s.role == "hidden", lambda w, d: d**0.5)
        assert bad(check("depth_mup", "layer", optimizer, fault)) == {("depth", "branch/hidden")}

    def test_vector_depth_factor(self, optimizer):
        fault = ("lr", lambda s: s.role == "vector" and s.in_branch, lambda w, d: d**0.5)
        expected = {("depth", "branch/vector bias"), ("depth", "branch/vector scale")}
        assert bad(check("depth_mup", "layer", optimizer, fault)) == expected

    def test_readout(self, optimizer):
        """SGD LR 1 instead of m_in; Adam LR 1 / m_in instead of 1."""
        fault = ("lr", lambda s: s.role == "readout", lambda w, d: 1 / w)
        failing = bad(check("depth_mup", "layer", optimizer, fault))
        assert ("width", "readout") in failing
        assert failing <= {("width", "readout"), ("width", "all")}


@optimized
@pytest.mark.slow
def test_planted_eps():
    """With a large eps: ok with the eps factors, not ok without, in width and depth (docs/rules.md section 0)."""
    report = check("depth_mup", "none", "adam", eps=1e-2, sizes=LONG)
    hidden = [s for s in report.slopes if s.group == "branch/hidden" and s.judged]
    assert {s.answer for s in hidden} == {"ok"}, str(report)
    no_factor = ("eps", lambda s: s.role == "hidden", lambda w, d: w * d**0.5)
    report = check("depth_mup", "none", "adam", no_factor, eps=1e-2, sizes=LONG)
    assert {("width", "branch/hidden"), ("depth", "branch/hidden")} <= bad(report), str(report)


def matrix_shapes(w, d):
    return {"in": np.zeros((3, w)), "hidden": np.zeros((d, w, w)), "out": np.zeros((w, 2))}


def matrix_probe(p, width, depth):
    """A probe of a model that is nobody's library: plain matrices."""
    specs = dm.infer_specs(matrix_shapes, layout="in_out", width=width, depth=depth)

    def init(key):
        keys = jax.random.split(key, 3)
        fan_in = {"in": 3, "hidden": width, "out": width}
        return {
            k: jax.random.normal(kk, v.shape) / fan_in[k] ** 0.5
            for kk, (k, v) in zip(keys, matrix_shapes(width, depth).items(), strict=True)
        }

    def features(params, batch, f):
        h, _ = jax.lax.scan(
            lambda h, w: (h + f.branch * jnp.tanh(h) @ w, None), batch[0] @ params["in"], params["hidden"]
        )
        return {"hidden": h, "logits": f.output * jnp.tanh(h) @ params["out"]}

    def loss(params, batch, f):
        return jnp.mean((features(params, batch, f)["logits"] - batch[1]) ** 2)

    rng = np.random.default_rng(0)
    batch = rng.normal(size=(8, 3)).astype(np.float32), rng.normal(size=(8, 2)).astype(np.float32)
    return dm.probe(
        p, specs, init=init, loss=loss, features=features, optimizer="adam", learning_rate=1e-3, batch=batch
    )


def test_own_model_and_report(tmp_path):
    options = {"widths": (16, 64), "depths": (4, 16), "width": 64, "depth": 4, "steps": (1, 3), "tolerance": 0.2}
    good = dm.coordinate_check(lambda w, d: matrix_probe(dm.parameterization("depth_mup"), w, d), **options)
    assert good.ok, str(good)
    assert {s.group for s in good.slopes} == {"input", "branch/hidden", "readout", "all"}
    wrong = dm.coordinate_check(lambda w, d: matrix_probe(dm.parameterization("sp"), w, d), **options)
    assert (wrong.verdict, wrong.ok) == ("not ok", False)
    assert "coordinate check: not ok" in str(wrong)
    wrong.plot(tmp_path / "check.png")
    assert (tmp_path / "check.png").read_bytes().startswith(b"\x89PNG")


def test_probe_trains_like_the_optimizer():
    """One step of a probe is one step of `dm.optimizer`; a group alone leaves the others where they were."""
    p = dm.parameterization("depth_mup")
    probe = matrix_probe(p, 16, 2)
    assert probe.groups == ("branch/hidden", "input", "readout")
    hyper = probe.hyper("all", 0)
    params, state = probe.init(hyper)
    np.testing.assert_allclose(params["out"].std(), 16**0.5 * 16**-0.5, rtol=0.5)  # times sqrt(m) on 1 / sqrt(fan_in)
    (after, _), _ = probe.step((params, state), probe.batch, hyper)
    specs = dm.infer_specs(matrix_shapes, layout="in_out", width=16, depth=2)
    forward = p.forward_factors(width=16, depth=2)

    def loss(params):
        h = probe.batch[0] @ params["in"]
        for w in params["hidden"]:
            h = h + forward.branch * jnp.tanh(h) @ w
        return jnp.mean((forward.output * jnp.tanh(h) @ params["out"] - probe.batch[1]) ** 2)

    tx = dm.optimizer(p, specs, "adam", 1e-3)
    updates, _ = tx.update(jax.grad(loss)(params), tx.init(params), params)
    for name in params:
        np.testing.assert_allclose(after[name], params[name] + updates[name], rtol=1e-4, atol=1e-7)
    (alone, _), _ = probe.step((params, state), probe.batch, probe.hyper("readout", 0))
    np.testing.assert_array_equal(alone["in"], params["in"])
    np.testing.assert_array_equal(alone["hidden"], params["hidden"])
    np.testing.assert_array_equal(alone["out"], after["out"])


def test_slopes_are_those_of_known_powers():
    """Of changes since the start, not since the step before."""

    def probe_at(width, depth):
        return dm.Probe(
            init=lambda seed: jnp.float32(0),
            step=lambda state, batch, seed: (state + 1, None),
            features=lambda state, batch, seed: {
                "hidden": state * jnp.full(3, width**0.5),
                "logits": state * jnp.full(2, 1 / depth),
            },
            hyper=lambda group, seed: np.float32(seed),
            groups=(),
            batch=np.zeros(1),
        )

    report = dm.coordinate_check(probe_at, widths=(8, 16, 64), depths=(2, 4), width=8, depth=2, seeds=2, steps=(1, 3))
    slopes = {(s.axis, s.quantity, s.step): s for s in report.slopes}
    expected = {("width", "hidden"): 0.5, ("width", "logits"): 0, ("depth", "hidden"): 0, ("depth", "logits"): -1}
    for (axis, quantity), slope in expected.items():
        for step in (1, 3):
            assert slopes[axis, quantity, step].plain.slope == pytest.approx(slope, abs=1e-5)
    np.testing.assert_allclose(
        slopes["width", "hidden", 3].changes, 3 * slopes["width", "hidden", 1].changes, rtol=1e-6
    )


def planted(traces):
    """Probes of two groups without noise and one with: their changes do not depend on width, and the noise on depth."""
    noise = {"calm": 0.0, "noisy": 1.0, "all": 0.01}

    def probe_at(width, depth):
        def step(state, batch, hyper):
            traces.append((width, depth))
            return state + 1, None

        def features(state, batch, hyper):
            key = jax.random.fold_in(jax.random.key(hyper["seed"]), depth)
            change = state * 2 ** (hyper["noise"] * (jax.random.normal(key) if depth > 4 else 0))
            return {"hidden": change * jnp.ones(3), "logits": change * jnp.ones(2)}

        return dm.Probe(
            init=lambda hyper: jnp.float32(0),
            step=step,
            features=features,
            hyper=lambda group, seed: {"seed": np.uint32(seed), "noise": np.float32(noise[group])},
            groups=("calm", "noisy"),
            batch=np.zeros(1),
        )

    return probe_at


def test_seeds_are_added_only_where_undecided():
    """By the same programs, and with the same result each time."""
    options = dict(widths=(8, 16), depths=(4, 8, 16), width=8, depth=4, steps=(1,), seeds=4)
    traces, again = [], []
    first = dm.coordinate_check(planted(traces), **options, max_seeds=4)
    assert first.verdict == "undecided"
    report = dm.coordinate_check(planted(again), **options, max_seeds=16)
    assert sorted(again) == sorted(traces)
    seeds = {(s.axis, s.group): s.changes.shape[1] for s in report.slopes}
    assert seeds == {(axis, group): 4 for axis in ("width", "depth") for group in ("calm", "noisy", "all")} | {
        ("depth", "noisy"): 8  # 16 would not decide it
    }
    noisy, before = (next(s for s in r.slopes if (s.axis, s.group) == ("depth", "noisy")) for r in (report, first))
    assert noisy.answer == "undecided"
    np.testing.assert_array_equal(noisy.changes[:, :4], before.changes)
    assert len(np.unique(noisy.changes[1])) == 8
    assert "undecided: 1 slopes; take more seeds" in str(report)


def test_what_goes_on_beside_a_slope_that_is_given_up():
    """Along its axis the verdict cannot be ok any more: only what may be not ok is trained."""

    def slope(axis, group, mean, spread):
        slopes = mean + spread * np.resize([-1.0, 1], 8)
        changes = 2.0 ** (np.log2([[1], [2], [4]]) * slopes)
        verdict, plain = "undecided", SlopeEstimate(mean, mean - 1, mean + 1)
        return Slope(axis, group, "hidden", 1, verdict, plain, None, (1, 2, 4), changes)

    open_, near, far = ("width", "open", 0.2, 0.1), ("width", "near", 0.06, 0.1), ("width", "far", 0.0, 0.5)
    for slopes, expected in (
        ([open_, near], [("width", "open"), ("width", "near")]),
        ([open_, near, far], [("width", "open")]),
        ([open_, near, ("depth", *far[1:])], [("width", "open"), ("width", "near")]),
    ):
        report = CoordinateReport("mup", [slope(*of) for of in slopes], 0.1)
        assert _open(report, 0.1, 3, 16) == expected


def test_groups_and_axes_share_their_starts():
    """One init for each shape and seed: that of a long list of blocks takes longer than its training."""
    starts = []

    def probe_at(width, depth):
        plain = planted([])(width, depth)
        return plain._replace(init=lambda hyper: starts.append((width, depth, int(hyper["seed"]))) or jnp.float32(0))

    dm.coordinate_check(probe_at, widths=(4, 8), depths=(2, 4), width=8, depth=4, steps=(1,), seeds=2, max_seeds=2)
    assert sorted(starts) == [(w, d, seed) for w, d in ((4, 4), (8, 2), (8, 4)) for seed in (0, 1)]


def test_no_seeds_are_added_along_an_axis_that_is_not_ok():
    def probe_at(width, depth):
        plain = planted([])(width, depth)
        tilted = {"calm": float(depth), "noisy": 1.0, "all": 1.0}
        return plain._replace(
            features=lambda state, batch, hyper: {
                k: v * hyper["tilt"] for k, v in plain.features(state, batch, hyper).items()
            },
            hyper=lambda group, seed: plain.hyper(group, seed) | {"tilt": np.float32(tilted[group])},
        )

    report = dm.coordinate_check(probe_at, depths=(4, 8, 16), width=8, steps=(1,), seeds=4, max_seeds=16)
    assert report.verdict == "not ok"
    assert {s.answer for s in report.slopes if s.group == "noisy" and s.judged} == {"undecided"}
    assert {s.changes.shape[1] for s in report.slopes} == {4}


def test_advice():
    """A slope that may fall like 1/depth needs larger depths, not seeds."""

    def probe_at(width, depth):
        plain = planted([])(width, depth)
        transient = np.float32(2 ** (1.6 / depth))
        hyper = lambda group, seed: {"seed": np.uint32(seed), "noise": np.float32(0.15)}  # noqa: E731
        return plain._replace(
            features=lambda *a: {k: v * transient for k, v in plain.features(*a).items()}, hyper=hyper, groups=()
        )

    sizes = dict(width=8, steps=(1,), max_seeds=8)
    report = dm.coordinate_check(probe_at, depths=(2, 4, 8), **sizes)
    assert report.verdict == "undecided"
    assert "undecided: 1 slopes that may fall like 1/depth" in str(report)
    two = dm.coordinate_check(probe_at, depths=(2, 8), **sizes)
    assert "give a third" in str(two)


def test_what_is_not_finite_is_not_ok():
    """Features without "hidden" are refused; a training that blows up at some size is not ok, and is named."""

    def without_hidden(width, depth):
        probe = matrix_probe(dm.parameterization("depth_mup"), width, depth)
        return probe._replace(features=lambda *a: {"h": jnp.zeros(1)})

    with pytest.raises(ValueError, match="features must have 'hidden' and 'logits', they have"):
        dm.coordinate_check(without_hidden, depths=(1, 2), width=8)

    def blown_up(width, depth):
        probe = matrix_probe(dm.parameterization("depth_mup"), width, depth)
        factor = jnp.inf if depth == 2 else 1.0
        return probe._replace(features=lambda *a: {k: v * factor for k, v in probe.features(*a).items()})

    report = dm.coordinate_check(blown_up, depths=(1, 2), width=8, seeds=2, steps=(1,))
    assert report.verdict == "not ok"
    assert "is not finite at depth 2, seed 0, by step 1, where" in str(report)


def test_errors():
    with pytest.raises(ValueError, match="at least two widths or two depths"):
        dm.coordinate_check(matrix_probe, widths=(8,))
    with pytest.raises(ValueError, match="depth must be at least 1"):
        dm.coordinate_check(matrix_probe, depths=(0, 2))


def test_what_does_not_move_has_no_slope():
    """In the first step of the readout alone the features do not move by a bit."""
    p = dm.parameterization("depth_mup")
    report = dm.coordinate_check(
        lambda w, d: matrix_probe(p, w, d), depths=(2, 4), width=16, seeds=2, max_seeds=2, steps=(1, 3)
    )
    keys = [(s.group, s.quantity, s.step) for s in report.slopes]
    assert ("readout", "logits", 1) in keys
    assert ("readout", "hidden", 1) not in keys


def test_what_a_report_prints():
    """At most 15 lines: judged slopes that are not ok come first, those that are not judged do not stand there."""

    def slope(axis, group, step, verdict, value):
        sizes, changes = (1, 2, 4), np.ones((3, 4))
        return Slope(axis, group, "hidden", step, verdict, SlopeEstimate(value, value, value), None, sizes, changes)

    groups = [f"group {i}" for i in range(12)]
    slopes = [slope("width", name, 1, "undecided", 0.2) for name in groups]
    slopes += [slope("width", name, 4, "not ok", 0.15 + i) for i, name in enumerate(groups)]
    slopes += [slope("depth", name, 1, "", 3.0) for name in groups] + [slope("depth", "all", 1, "ok", 0.01)]
    report = CoordinateReport("mup", slopes, 0.1)
    lines = str(report).splitlines()
    assert len(lines) == 15
    assert lines[1].startswith("over width 1, 2, 4, the farthest: group 11 +11.15")
    assert lines[-1] == "report.table() has all 37 slopes"
    assert all("not ok" in line for line in lines[4:-1])
    assert len(report.table().splitlines()) == 3 + 1 + 1 + 37
    right = CoordinateReport("mup", slopes[-1:], 0.1)
    assert len(str(right).splitlines()) == 3


def test_a_mean_of_normalized_units_does_not_move():
    """XLA computes it anew in each operation that it is a part of, with other last digits: exactly 0 all the same."""

    def features(state, batch, hyper):
        h = batch @ state["in"]
        h = (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-6)
        hidden = (h * state["scale"]).mean(1)
        return {"hidden": hidden, "logits": hidden @ state["out"]}

    def step(state, batch, hyper):
        grads = jax.grad(lambda state: (features(state, batch, hyper)["logits"] ** 2).sum())(state)
        return {name: w - hyper["trains"][name] * grads[name] for name, w in state.items()}, None

    def init(hyper):
        keys = jax.random.split(jax.random.key(hyper["seed"]))
        out = jax.random.normal(keys[1], (64, 10))
        return {"in": jax.random.normal(keys[0], (12, 64)), "scale": jnp.ones(64), "out": out}

    def hyper(group, seed):
        return {
            "seed": np.uint32(seed),
            "trains": {name: np.float32(1e-3 * (name == group)) for name in ("in", "scale", "out")},
        }

    batch = np.random.default_rng(0).normal(size=(32, 20, 12)).astype(np.float32)
    probe = Probe(init, step, features, hyper, ("out",), batch)
    changes = feature_changes(probe, ["out"], 3, [0, 1])["out"]
    assert not changes["hidden"].any()
    np.testing.assert_allclose(changes["logits"] / changes["logits"][:, :1], [[1, 2, 3]] * 2, rtol=0.1)

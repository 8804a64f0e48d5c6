"""The statements of docs/theory.md that no other command shows: each one simulated in a small way, and judged.

    python -m experiments.theory_checks                      (all of them; 40 minutes on two cores)
    python -m experiments.theory_checks training overlaps    (only these; their names are in CHECKS)

It prints a table: the section of docs/theory.md, what is measured, the band in which the statement puts it, the value
with its 95% interval over seeds, and whether the statement holds: the whole interval lies within the band.

In section 6 the networks are the package's own, with one learning rate for all weights that are trained (depth-muP: its
own rates). s is the mean over layers of the mean square change in a step of learning rate 1, linearised, and eta* =
s^(-1/2). Exponents are slopes of log eta* in log depth or log width, of each seed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import depthmup as dm
from depthmup.activations import ActivationName
from depthmup.backend import prepare_cpu
from depthmup.fit import capped, ensemble_errors, optimum
from depthmup.fit.drift import fitted_drift
from depthmup.measure import distance, feature_kernels, update_sizes
from depthmup.models import CNN, MLP, Model, ResidualCNN, ResidualMLP, model_specs, states
from depthmup.rules.specs import PyTree
from depthmup.theory import Problem, dmft, lazy_kernels, minibatches, one_step_linear
from experiments import command_line, convolutional_kernels, ntk_depth, richness, signal_propagation, two_weight_blocks
from experiments.networks import GROUPS, KX, Y, mean_error, network, noisy_law, train
from experiments.output import Row, about, mean, of_law

CLASSES, FEATURES, BATCH = 10, 64, 16
ONE_SAMPLE = np.ones((1, 2))
READINS = {"frozen": ("branch", "readout"), "trained": tuple(GROUPS)}  # {read-in: the groups that are trained}


def slope(sizes: Sequence[float], values: np.ndarray) -> tuple[float, float]:
    """Of log values, (seeds, sizes), in log size: the mean over seeds, and half of its 95% interval."""
    return mean(np.polyfit(np.log2(sizes), np.log2(values).T, 1)[0])


# Section 1.1: other powers of depth


def powers_of_depth(
    depths: Sequence[int] = (16, 32, 64, 128),
    widths: Sequence[int] = (64, 128, 256, 512),
    width: int = 96,
    depth: int = 8,
    seeds: int = 8,
) -> list[Row]:
    """The RMS change of h^L in training of the branches alone depends neither on depth nor on width."""
    rows = []
    for family, alpha in itertools.product(("sgd", "adam"), (0.5, 0.75, 1.0)):
        power = 2 * alpha - 1 if family == "sgd" else alpha - 1
        name = f"{family}, alpha {alpha:g}: change of h^L, slope in"
        slopes = alpha_slopes(family, alpha, 0.0, seeds, depths=depths, width=width)
        rows += [Row("1.1", f"{name} L, {step} steps", about(0, 0.1), *slopes[step]) for step in (1, 10)]
        if power:
            slopes = alpha_slopes(family, alpha, -power, seeds, depths=depths, width=width)
            rows.append(Row("1.1", f"{name} L, 1 step, without L^{power:g}", about(-power, 0.1), *slopes[1]))
        if alpha != 0.75:
            slopes = alpha_slopes(family, alpha, 0.0, seeds, widths=widths, depth=depth)
            rows.append(Row("1.1", f"{name} N, 10 steps", about(0, 0.1), *slopes[10]))
    return rows


def alpha_slopes(family: str, alpha: float, power: float, seeds: int, **sizes: Any) -> dict[int, tuple[float, float]]:
    """{steps: (slope, half of its interval)} if learning rates are multiplied by L^power as well."""
    p = dm.parameterization("depth_mup", alpha=alpha)
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(4, FEATURES)).astype(np.float32), rng.normal(size=(4, 1)).astype(np.float32)

    def probe_at(width: int, depth: int) -> dm.Probe:
        model = ResidualMLP(width, depth, 1, "tanh")

        def features(params: PyTree, batch: Any, f: dm.ForwardFactors) -> dict[str, jax.Array]:
            logits, sown = model.apply({"params": params}, batch[0], f, mutable=["stream"])
            return {"hidden": states(sown["stream"])[-1], "logits": logits}

        return dm.probe(
            p,
            model_specs(model, (FEATURES,)),
            init=lambda key: model.init(key, batch[0], dm.ForwardFactors(1.0, 1.0, None))["params"],
            loss=lambda params, batch, f: jnp.mean((features(params, batch, f)["logits"] - batch[1]) ** 2) / 2,
            features=features,
            optimizer=family,
            learning_rate={"sgd": 0.05, "adam": 0.005}[family] * depth**power,
            batch=batch,
            **({"eps": 1e-20} if family == "adam" else {}),
        )._replace(groups=("branch/hidden",))

    report = dm.coordinate_check(probe_at, seeds=seeds, **sizes)
    return {
        measured.step: (measured.plain.slope, measured.plain.high - measured.plain.slope)
        for measured in report.slopes
        if (measured.group, measured.quantity) == ("branch/hidden", "hidden")
    }


# Sections 1, 4 and 5: paper A


def ntp(
    widths: Sequence[int] = (16, 32, 64, 128, 256, 512),
    networks: int = 2**14,
    rates: Sequence[float] = tuple(2.0 ** np.arange(-1.5, 1.26, 0.25)),
) -> list[Row]:
    """Appendices C and J: under NTP, gamma_0 = N^-1/2, kernels move less with the width, under muP they do not; over
    width the best eta_0 of both stays. ReLU, five steps. networks: seeds times width, for at most 256 seeds."""
    rows = []
    for name, power in (("muP", 0.0), ("NTP", -0.5)):
        moved, optima = [], []
        for width in widths:
            seeds = min(256, networks // width)
            problem = Problem(KX, Y, depth=3, steps=6, eta0=0.5, gamma0=width**power, activation="relu")
            # Widths have no seed in common, learning rates share theirs.
            options: dict[str, Any] = dict(width=width, first_seed=2**20 * width)
            observe = richness.last_kernels(width, 3, "relu")
            kernels = train(problem, seeds=max(8, seeds // 4), mirrored=True, observe=observe, **options)[1][:, :, 0]
            moved.append(mean_error(np.asarray(distance(kernels[:, 1], kernels[:, 0]))))
            runs = [train(dataclasses.replace(problem, eta0=rate), seeds=seeds, **options)[:, -1] for rate in rates]
            losses = 0.5 * np.mean((np.array(runs, float) - Y) ** 2, axis=-1)
            # A few of hundreds of narrow networks diverge at any large rate: they count with the loss of F = 0.
            optima.append(optimum(np.array(rates), capped(losses, 0.5 * float(np.mean(Y**2)))))
        statement = f"{name}: movement of the last feature kernel, slope in N"
        rows.append(Row("1", statement, about(2 * power, 0.1), *of_law(richness.exponent(widths, *np.array(moved).T))))
        drift = fitted_drift(widths, optima, min(256, networks // max(widths)))
        assert drift is not None
        rows.append(Row("1", f"{name}: best eta_0, octaves a doubling of N", about(0, 0.1), *of_law(drift)))
    return rows


def one_step_kernels(
    width: int = 512,
    depth: int = 32,
    seeds: int = 96,
    depths: Sequence[int] = ntk_depth.DEPTHS,
    rates: Sequence[float] = (0.5, 1.0),
) -> list[Row]:
    """H_1 of deep linear networks, one sample with |x|^2 / D = y = beta = 1, against the recursion at their depth, and
    of that against infinite depth, between the two largest depths (paper A, Figure 7). rates: c = eta_0 gamma_0."""
    model, rows = network(width, depth, 1, "linear"), []
    start = Problem(np.ones((1, 1)), np.ones(1), depth=depth, activation="linear", steps=2, eta0=1.0)

    def observe(params: PyTree, forward: dm.ForwardFactors) -> jax.Array:
        states = model.forward(forward)(params, jnp.asarray(ONE_SAMPLE), None)[1]
        return feature_kernels(jax.tree.leaves(states))[:, 0, 0]

    for (readin, groups), c in itertools.product(READINS.items(), rates):
        solution = functools.partial(one_step_linear, c, train_readin=readin == "trained")
        problem = dataclasses.replace(start, eta0=c, trained=groups)
        # All have the same initial weights, each network with its mirror image, which cancels what is odd in y.
        kernels = train(problem, ONE_SAMPLE, width=width, seeds=seeds, mirrored=True, observe=observe)[1]
        average, error = mean_error(kernels[:, 1].astype(float))
        farthest = float(np.abs((average - solution(depth).H1) / error).max())
        name = f"read-in {readin}, c = {c:g}"
        rows.append(Row("3", f"{name}: networks - recursion, s.e., the largest of {depth} layers", (0, 4), farthest))
        limit, *finite = (solution(at).H1[-1] for at in (None, *depths))
        slope = ntk_depth.last_slope(depths, np.abs(np.array(finite) - limit).tolist())
        rows.append(Row("3", f"{name}: H_1(1) - its limit, slope in L", about(-1, 0.005), slope))
    return rows


def limits_commute(
    widths: Mapping[int, int] = {32: 6144, 64: 4096, 128: 1024, 256: 512}, depths: Sequence[int] = (2, 4, 8, 16, 32)
) -> list[Row]:
    """Appendix F: predictions have no term L/N, with which the order of the limits would matter. {width: networks}"""
    sizes, rows = np.array(depths, float)[:, None], []
    share = np.linalg.pinv(np.hstack([sizes ** -np.arange(3), sizes]))[-1]  # of each depth in the coefficient of L
    rates: dict[ActivationName, float] = {"linear": 0.15, "relu": 0.5}
    for i, (activation, eta0) in enumerate(rates.items()):
        problem, moments = Problem(KX, Y, depth=2, steps=6, eta0=eta0, activation=activation), []
        for width, seeds in widths.items():
            options: dict[str, Any] = dict(width=width, seeds=seeds, first_seed=2**20 * width + 2**30 * i)
            last = [train(dataclasses.replace(problem, depth=depth), **options)[:, -1] for depth in depths]
            draws = np.einsum("l,lsp->sp", width * share, np.array(last, float))
            moments.append((draws.mean(0), draws.var(0, ddof=1) / seeds))
        values, noise = np.swapaxes(moments, 0, 1)
        weights = 1 / noise.mean(1) / np.sum(1 / noise.mean(1))
        for y, value, error in zip(Y, weights @ values, np.sqrt(weights**2 @ noise), strict=True):
            name = f"{activation}, prediction at y = {y:g}: coefficient of L/N"
            rows.append(Row("5", name, about(0, 0.01), float(value), 1.96 * float(error)))
    return rows


def ensemble(residual: bool, width: int, depth: int, seeds: int, first_seed: int) -> dict[str, np.ndarray]:
    """Of ReLU networks on one input of norm 1: H^L, G^0 and the NTK, (seeds,), each up to a common factor, before and
    after three steps, and then F. A step would learn 30% of the remaining error in the lazy limit."""
    model = network(width, depth, 1, "relu", residual=residual)
    ntk_of = ntk_depth.network_ntk(model, ONE_SAMPLE)

    def observe(params: PyTree, forward: dm.ForwardFactors) -> dict[str, jax.Array]:
        ntk = ntk_of(params, forward)
        last = jax.tree.leaves(model.forward(forward)(params, jnp.asarray(ONE_SAMPLE), None)[1])[-1]
        # The read-in's part of the NTK is Kx G^0 at any width, and here Kx = 1.
        parts = {"H": feature_kernels([last])[0], "G": ntk["readin"], "NTK": sum(ntk.values(), jnp.zeros((1, 1)))}
        return {name: part[0, 0] for name, part in parts.items()}

    limit = lazy_kernels(np.ones((1, 1)), depth).ntk[0, 0] if residual else (depth + 2) / 2
    problem = Problem(np.ones((1, 1)), np.ones(1), depth=depth, activation="relu", steps=4, eta0=0.3 / limit)
    options: dict[str, Any] = dict(width=width, residual=residual, seeds=seeds, first_seed=first_seed)
    predictions, kernels = train(problem, ONE_SAMPLE, observe=observe, **options)
    measured = {f"{name}, initial": values[:, 0] for name, values in kernels.items()}
    measured |= {f"{name}, 3 steps": values[:, 1] for name, values in kernels.items()}
    return measured | {"F, 3 steps": predictions[:, -1, 0]}


def fluctuations(
    depths: Sequence[int] = (2, 4, 8, 16, 32), widths: Sequence[int] = (128, 256), seeds: int = 300
) -> list[Row]:
    """Appendix H: the relative variance of networks has a limit in depth with skips, and grows as L without."""
    rows = []
    for name, residual, band in (("residual", True, about(0, 0.3)), ("plain", False, (0.9, 1.7))):
        for i, width in enumerate(widths):
            # Every size has seeds of its own, since networks of two sizes with one seed share random numbers.
            stats = [ensemble(residual, width, n, seeds, (i * len(depths) + j) * seeds) for j, n in enumerate(depths)]
            for quantity in stats[0]:
                relative = (sample[quantity] / sample[quantity].mean(dtype=float) for sample in stats)
                variances = [ensemble_errors(values, 1.0).variance for values in relative]
                statement = f"{name}, N = {width}: relative variance of {quantity}, slope in L"
                rows.append(Row("5", statement, band, *of_law(noisy_law(depths, *np.array(variances).T))))
    return rows


def descent(widths: tuple[int, int] = (64, 128), seeds: int = 2048, samples: int = 16000) -> list[Row]:
    """Momentum, decay, minibatches and two outputs: the mean of networks, extrapolated in 1/N, against the DMFT."""
    batches = [[0, 1], [2, 1], [0, 2], [1, 2], [2, 0], [1, 0], [0, 1], [2, 1]]
    weights = minibatches(batches, 3)
    two = np.stack([Y, Y[::-1]], axis=1)
    cases: dict[str, tuple[np.ndarray, dict[str, Any], bool]] = {
        "momentum .6": (Y, dict(momentum=0.6), False),
        "decay": (Y, dict(weight_decay=0.1), False),
        "batches of 2 of 3": (Y, {}, True),
        "all three": (Y, dict(momentum=0.6, weight_decay=0.1), True),
        "two outputs": (two, {}, False),
    }
    rows = []
    for activation, (name, (y, options, batched)) in itertools.product(("tanh", "relu"), cases.items()):
        eta0 = 0.2 if "momentum" in options else 0.4
        problem = Problem(KX, y, depth=3, steps=len(batches), eta0=eta0, activation=activation, **options)
        chosen = batches if batched else None
        runs = [train(problem, width=n, seeds=seeds, first_seed=n * seeds, batches=chosen) for n in widths]
        if batched:
            problem = dataclasses.replace(problem, sample_weights=weights)
        limit = dmft(problem, samples=samples)
        assert limit.stderr is not None
        far, near = (predictions.astype(float) for predictions in runs)
        gap = (2 * near.mean(0) - far.mean(0) - limit.predictions)[1:]
        noise = np.sqrt(4 * near.var(0) / seeds + far.var(0) / seeds + limit.stderr**2)[1:]
        rms, error = (float(np.sqrt(np.mean(values**2))) for values in (gap, noise))
        rows.append(Row("4.3", f"{activation}, {name}: rms of networks - DMFT", (-0.02, 0.02), rms, 1.96 * error))
    return rows


# Section 6: AM-muP


class Variant(NamedTuple):
    """How the change is measured. readout: the power of 1/N in front of readout weights N(0, 1)."""

    loss: str = "one sample"
    readout: float = 1.0
    trained: tuple[str, ...] = ("hidden",)

    def __str__(self) -> str:
        readout = {1.0: "1/N", 0.5: "1/sqrt(N)"}[self.readout]
        return f"{self.loss}, readout {readout}, {'all' if len(self.trained) > 1 else 'hidden'} trained"


@dataclasses.dataclass(frozen=True)
class Net:
    """shape: of an input."""

    model: Model
    p: dm.Parameterization
    shape: tuple[int, ...]

    @functools.cached_property
    def specs(self) -> PyTree:
        return model_specs(self.model, self.shape)

    @functools.cached_property
    def rates(self) -> PyTree:
        return dm.factors(self.p, self.specs).lr

    def init(self, seed: Any) -> PyTree:
        unit = dm.ForwardFactors(1.0, 1.0, None)
        params = self.model.init(jax.random.key(seed), jnp.ones((1, *self.shape)), unit)["params"]
        return dm.rescale(self.p, self.specs, params)

    def run(self, params: PyTree, x: Any) -> tuple[jax.Array, list[jax.Array]]:
        """(logits, [z^0, .. z^L])."""
        f = self.p.forward_factors(width=self.model.width, depth=self.model.depth)
        logits, sown = self.model.apply({"params": params}, x, f, mutable=["stream"])
        return logits, states(sown["stream"])

    def step(self, params: PyTree, variant: Variant) -> tuple[PyTree, np.ndarray]:
        """(the change of the parameters at learning rate 1, inputs); all data are random."""
        rng = np.random.default_rng(0)
        x, y = (rng.normal(size=(BATCH, *size)).astype(np.float32) for size in (self.shape, (self.model.outputs,)))
        labels = rng.integers(0, self.model.outputs, BATCH)
        x = x[:1] if variant.loss == "one sample" else x
        # depth-muP has the readout 1/N in any case, the others 1/sqrt(N).
        scale = 1.0 if self.p.name == "depth_mup" else self.model.width ** (0.5 - variant.readout)

        def loss(params: PyTree) -> jax.Array:
            logits = scale * self.run(params, jnp.asarray(x))[0]
            if variant.loss == "one sample":
                return -logits[0, 0]
            if variant.loss == "CE":
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
            outputs = slice(None) if variant.loss == "MSE of all outputs" else slice(1)
            return jnp.mean((logits - y)[:, outputs] ** 2) / 2

        def change(g: jax.Array, rate: float, spec: dm.ParamSpec) -> jax.Array:
            return -rate * g * float(spec.role in variant.trained)

        return jax.tree.map(change, jax.grad(loss)(params), self.rates, self.specs), x

    def mean_change(self, params: PyTree, change: PyTree, x: np.ndarray) -> jax.Array:
        """s of this change of the parameters."""
        return update_sizes(lambda params: self.run(params, x)[1], params, change)[0].mean()


ALL = ("input", "hidden", "readout")
VARIANTS = (Variant(), *(Variant(loss, readout, ALL) for readout in (1.0, 0.5) for loss in ("MSE", "CE")))
AM = dict(name="am_mup", lr_depth=0.0)  # variance c / (K fan_in) and one learning rate
# {kind: (layers of a branch, rule, exponent)}; where read-in and readout are trained, too, it is min(0, exponent)
KINDS: dict[str, tuple[int, dict[str, Any], float]] = {
    "plain": (0, dict(name="sp"), -1.5),
    "branches of one layer": (1, AM, -1.0),
    "branches of two, both scaled": (2, AM, 0.0),
    "branches of two, last scaled": (2, AM | dict(branch_init="*/last/*"), -1.0),
    "branches of three, all scaled": (3, AM, 1.0),
    "branches of two, both with 1/K": (2, AM | dict(alpha=1.0), 1.0),
    "depth-muP": (1, dict(name="depth_mup"), 0.0),
}


def net(kind: str, width: int, depth: int, outputs: int = CLASSES) -> Net:
    layers, rule, _ = KINDS[kind]
    p = dm.parameterization(**rule)
    if not layers:
        return Net(MLP(width, depth, outputs), p, (FEATURES,))
    return Net(ResidualCNN(width, depth, outputs, kernels=(1,) * layers), p, (1, FEATURES))


def of_seeds(measure: Callable[[Any], jax.Array], seeds: int) -> np.ndarray:
    """What `measure` returns of each seed, (seeds, ...)."""
    compiled = jax.jit(measure)
    return np.stack([np.asarray(compiled(np.uint32(seed)), float) for seed in range(seeds)])


def mean_changes(network: Net, variants: Sequence[Variant], seeds: int) -> np.ndarray:
    """s, the mean over layers of the mean square change in a step of learning rate 1, (variants, seeds)."""

    def one(seed: Any) -> jax.Array:
        params = network.init(seed)
        return jnp.stack([network.mean_change(params, *network.step(params, variant)) for variant in variants])

    return of_seeds(one, seeds).T


def best_rates(nets: Iterable[Net], variants: Sequence[Variant], seeds: int) -> np.ndarray:
    """eta*, (variants, seeds, nets)."""
    return np.stack([mean_changes(network, variants, seeds) for network in nets], axis=2) ** -0.5


def exponent(kind: str, variant: Variant) -> float:
    """Of eta* in depth, by section 6b. The changes of read-in and readout are of one size at every depth."""
    alone = KINDS[kind][2]
    return alone if variant.trained == ("hidden",) else min(0.0, alone)


def mean_change_over_depth(
    depths: Sequence[int] = (8, 16, 32), width: int = 512, seeds: int = 32, kinds: Sequence[str] = tuple(KINDS)
) -> list[Row]:
    """The exponent of eta* in depth, of each kind of branch, loss and readout (paper B, Theorem 3 and Appendix F)."""
    rows = []
    for kind in kinds:
        variants = VARIANTS[:3] if kind == "depth-muP" else VARIANTS  # its readout is 1/N
        rates = best_rates((net(kind, width, depth) for depth in depths), variants, seeds)
        for variant, best in zip(variants, rates, strict=True):
            band = about(exponent(kind, variant), 0.25)
            rows.append(Row("6", f"{kind}: eta* in L, {variant}", band, *slope(depths, best)))
    return rows


def mean_change_at_infinite_width(largest: int = 64) -> list[Row]:
    """The same at infinite width, one sample, hidden weights: the sum of section 6a, and the DMFT of one step."""

    def plain(depth: int) -> float:
        m = np.arange(depth)
        pairs = 1 + 2.0 * np.minimum.outer(m, m)
        return float(np.mean([pairs[:l, :l].sum() for l in range(depth)]))  # noqa: E741 - z^1 does not change

    def residual(depth: int, activation: ActivationName, beta: float) -> float:
        options: dict[str, Any] = dict(steps=2, eta0=0.01, activation=activation, beta=beta, trained=("branch",))
        H = dmft(np.ones((1, 1)), np.ones(1), depth=depth, samples=4000, **options).H[:, :, 0, :, 0]
        return float(np.mean(H[:, 1, 1] - 2 * H[:, 0, 1] + H[:, 0, 0]))

    def last(s: Callable[[int], float], largest: int = largest) -> float:
        return -0.5 * np.log2(s(largest) / s(largest // 2))

    rows = [Row("6a", "plain, N = inf: eta* from L = 256 to 512", about(-1.5, 0.01), last(plain, 512))]
    name = f"N = inf: eta* from L = {largest // 2} to {largest}"
    betas: dict[ActivationName, float] = {"relu": 2**0.5, "linear": 1.0, "tanh": 1.0}
    for activation, beta in betas.items():
        # In the absorbed form the learning rate of the branches is eta_0 / L.
        value = last(functools.partial(residual, activation=activation, beta=beta)) - 1
        rows.append(Row("6b", f"{activation}, branches of one layer, {name}", about(-1, 0.08), value))
    return rows


def by_layer(network: Net, seeds: int) -> np.ndarray:
    """Changes of every z^l on one sample in steps of each block's weights alone: (seeds, blocks, states, N)."""

    def every(seed: Any) -> jax.Array:
        params = network.init(seed)
        change, x = network.step(params, Variant())  # of the stacked weights of the blocks, and 0 of all others

        def alone(block: jax.Array) -> jax.Array:
            def masked(w: jax.Array, spec: dm.ParamSpec) -> jax.Array:
                if spec.role != "hidden":
                    return w
                return w * (jnp.arange(len(w)) == block).reshape(-1, *[1] * (w.ndim - 1))

            tangent = jax.tree.map(masked, change, network.specs)
            return jnp.stack([dz.ravel() for dz in jax.jvp(lambda w: network.run(w, x)[1], (params,), (tangent,))[1]])

        return jax.lax.map(alone, jnp.arange(len(jax.tree.leaves(params["blocks"])[0])))

    return of_seeds(every, seeds)


def overlaps(width: int = 768, depth: int = 12, seeds: int = 48) -> list[Row]:
    """<v_k v_k'> / |g|^2 = 1 + 2 min(m, m') in plain networks. v_k is the change of z^L in a step of matrix k alone."""
    changes = by_layer(net("plain", width, depth), seeds)[:, ::-1, -1]  # m = 0 first
    m = np.arange(changes.shape[1])
    gram = changes @ np.swapaxes(changes, 1, 2)
    gram /= gram[:, :1, :1] * (1 + 2 * np.minimum.outer(m, m))
    off = ~np.eye(len(m), dtype=bool)
    return [
        Row("6a", f"plain, L = {depth}: <v_k v_k'> over 1 + 2 min(m, m'), {name}", about(1, 0.2), *mean(part.mean(1)))
        for name, part in (("k = k'", np.diagonal(gram, axis1=1, axis2=2)), ("others", gram[:, off]))
    ]


def own_change(depths: Sequence[int] = (8, 16, 32), width: int = 512, seeds: int = 8) -> list[Row]:
    """The change of z^l by the weights right before it, in residual networks, is of one order at all l and L.
    At infinite size it goes as e^(l/L) for c = 2: by e^(3/4) = 2.1 from the first quarter of the layers to the last."""
    kind = "branches of one layer"
    changes = (by_layer(net(kind, width, depth), seeds)[:, :, 1:] for depth in depths)
    per_layer = [np.mean(np.einsum("skkn->skn", change) ** 2, axis=2) for change in changes]
    measured = slope(depths, np.stack([change.mean(1) for change in per_layer], axis=1) ** -0.5)
    last, quarter = per_layer[-1], depths[-1] // 4
    ratio = last[:, -quarter:].mean(1) / last[:, :quarter].mean(1)
    return [
        Row("6", f"{kind}: eta* in L, change by the layer itself", about(0, 0.1), *measured),
        Row("6", f"{kind}, L = {depths[-1]}: that of the last quarter over the first", about(2.1, 0.7), *mean(ratio)),
    ]


def first_order(
    width: int = 256, depth: int = 16, seeds: int = 24, shares: Sequence[float] = (0.01, 0.1, 0.3, 1.0)
) -> list[Row]:
    """The mean change in a step of f eta*, over f^2: 1 if it were linear in the step."""
    bands, rows = {0.01: (0.97, 1.01), 0.1: (0.85, 1.0), 0.3: (0.6, 1.0), 1.0: (0.25, 1.2)}, []

    def ratios(seed: Any, network: Net, variant: Variant) -> jax.Array:
        params = network.init(seed)
        change, x = network.step(params, variant)
        before = network.run(params, x)[1]
        eta = network.mean_change(params, change, x) ** -0.5

        def ratio(share: float) -> jax.Array:
            after = network.run(jax.tree.map(lambda w, v: w + share * eta * v, params, change), x)[1]
            sizes = [jnp.mean((a - b) ** 2) for a, b in zip(after, before, strict=True)]
            return jnp.stack(sizes).mean() / share**2

        return jnp.stack([ratio(share) for share in shares])

    cases = [(kind, power) for kind in ("branches of one layer", "plain") for power in (1.0, 0.5)]
    for kind, power in (*cases, ("depth-muP", 1.0)):
        variant = Variant("CE", power, ALL)
        measured = of_seeds(functools.partial(ratios, network=net(kind, width, depth), variant=variant), seeds)
        for share, of_share in zip(shares, measured.T, strict=True):
            name = f"{kind}, {variant}: change at {share:g} eta* over its linearisation"
            rows.append(Row("6", name, bands[share], *mean(of_share)))
    return rows


def mean_change_of_cnns(
    depths: Sequence[int] = (4, 8, 16), width: int = 256, seeds: int = 12, sides: Sequence[int] = (8, 32)
) -> list[Row]:
    """eta* of one-dimensional CNNs with kernels of 3 and He init, one sample."""
    plain: tuple[Any, ...] = ("plain CNN", CNN, dict(name="sp"))
    residual = ("CNN with branches of one layer", functools.partial(ResidualCNN, kernels=(3,)), AM)
    cases = [
        (*plain, "circular", (-1.75, -1.25)), (*plain, "zero", (-1.6, -0.6)), (*residual, "circular", about(-1, 0.25)),
    ]  # fmt: skip
    rows = []
    for (name, make, rule, padding, band), side in itertools.product(cases, sides):
        models = [make(width, depth, padding=padding) for depth in depths]
        nets = [Net(model, dm.parameterization(**rule), (side, FEATURES)) for model in models]
        measured = slope(depths, best_rates(nets, [Variant()], seeds)[0])
        rows.append(Row("6a", f"{name}, {padding} padding, {side} positions: eta* in L", band, *measured))
    return rows


def mean_change_over_width(widths: Sequence[int] = (64, 128, 256, 512), depth: int = 6, seeds: int = 32) -> list[Row]:
    """Whether eta* depends on width (paper B, Theorem 1), with both readouts; and with as many outputs as units."""
    rows = []
    variants = [Variant(loss, readout) for loss in ("one sample", "CE") for readout in (1.0, 0.5)]
    many = Variant("MSE of all outputs", 0.5)
    for kind in ("plain", "branches of one layer"):
        rates = best_rates((net(kind, n, depth) for n in widths), variants, seeds)
        for variant, best in zip(variants, rates, strict=True):
            band = about(variant.readout - 1, 0.25)
            rows.append(Row("6", f"{kind}: eta* in N, {variant}", band, *slope(widths, best)))
        (rates,) = best_rates((net(kind, n, depth, outputs=n) for n in widths), [many], seeds)
        rows.append(Row("6", f"{kind}: eta* in N, N outputs, {many}", about(0, 0.25), *slope(widths, rates)))
    return rows


def training(
    depths: Sequence[int] = (4, 8, 16, 32),
    width: int = 96,
    seeds: int = 12,
    steps: int = 40,
    log2_rates: Sequence[float] = tuple(np.arange(-8, 2.1, 0.5)),
    kinds: Sequence[str] = tuple(KINDS),
) -> list[Row]:
    """The learning rate of the smallest loss after 40 steps of SGD on ten Gaussian clusters, all weights trained."""
    rows = []
    for kind in kinds:
        losses = np.stack([final_losses(net(kind, width, n), log2_rates, seeds, steps) for n in depths])
        best = np.asarray(log2_rates)[losses.argmin(axis=2)]  # (depths, seeds)
        edges = np.isin(best, [log2_rates[0], log2_rates[-1]]).mean()
        inside = f"; {100 * edges:.0f}% at the edge of the grid" if edges else ""
        band = about(exponent(kind, Variant("CE", 0.5, ALL)), 0.25)
        name = f"{kind}: best learning rate of short trainings, in L{inside}"
        rows.append(Row("6", name, band, *slope(depths, np.exp2(best.T))))
    return rows


def final_losses(network: Net, log2_rates: Sequence[float], seeds: int, steps: int) -> np.ndarray:
    """Cross-entropy over the clusters after training, (seeds, rates); infinite where it diverged."""
    rng = np.random.default_rng(1)
    centres, labels = rng.normal(size=(CLASSES, *network.shape)), rng.integers(0, CLASSES, 512)
    x = jnp.asarray(centres[labels] + rng.normal(size=(512, *network.shape)), jnp.float32)

    def loss(params: PyTree, chosen: Any) -> jax.Array:
        logits = network.run(params, x[chosen])[0]
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(labels)[chosen]).mean()

    def one(trial: tuple[jax.Array, jax.Array]) -> jax.Array:
        seed, rate = trial
        key = jax.random.key(seed + 1000)

        def step(params: PyTree, i: jax.Array) -> tuple[PyTree, None]:
            batch = jax.random.randint(jax.random.fold_in(key, i), (32,), 0, len(x))
            grads = jax.grad(loss)(params, batch)
            return jax.tree.map(lambda w, g, factor: w - rate * factor * g, params, grads, network.rates), None

        return loss(jax.lax.scan(step, network.init(seed), jnp.arange(steps))[0], slice(None))

    trials = np.repeat(np.arange(seeds, dtype=np.uint32), len(log2_rates)), np.tile(np.exp2(log2_rates), seeds)
    losses = np.asarray(jax.jit(lambda trials: jax.lax.map(one, trials))((trials[0], trials[1].astype(np.float32))))
    return np.where(np.isfinite(losses), losses, np.inf).reshape(seeds, -1)


CHECKS: dict[str, Callable[..., list[Row]]] = {
    check.__name__: check
    for check in (
        powers_of_depth, ntp, descent, limits_commute, fluctuations, mean_change_over_depth,
        mean_change_at_infinite_width, overlaps, own_change, first_order, mean_change_of_cnns, mean_change_over_width,
        training, one_step_kernels,
    )
} | {
    module.__name__.split(".")[-1]: module.rows
    for module in (convolutional_kernels, ntk_depth, richness, signal_propagation, two_weight_blocks)
}  # fmt: skip


def main() -> None:
    options = command_line.parser("experiments.theory_checks", __doc__, "check", CHECKS).parse_args()
    print(f"{'':5} {'what is measured':82} {'stated':16} {'measured [95%]':30} holds")
    for name in options.checks:
        for row in CHECKS[name]():
            print(row, flush=True)


if __name__ == "__main__":
    prepare_cpu(1)
    main()

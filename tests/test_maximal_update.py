"""The maximal-update learning rate: its slopes in depth, exact values of linear networks, its averages."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup as dm
from depthmup.measure import MaximalUpdate, update_sizes
from depthmup.models import MLP, ResidualCNN, ResidualMLP, model_specs, states

CLASSES, BATCH = 10, 16


def functions(model, shape, p):
    """activations, loss, init, batch, optimizer with the parameterization's learning rates."""
    specs = model_specs(model, shape)
    f = p.forward_factors(width=model.width, depth=model.depth)
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(BATCH, *shape)).astype(np.float32), rng.integers(0, CLASSES, BATCH)

    def init(key):
        return dm.rescale(p, specs, model.init(key, batch[0][:1], dm.ForwardFactors(1.0, 1.0, 1.0))["params"])

    def activations(params, batch):
        return states(model.apply({"params": params}, batch[0], f, mutable=["stream"])[1]["stream"])

    def loss(params, batch):
        logits = model.apply({"params": params}, batch[0], f)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    return activations, loss, init, batch, dm.optimizer(p, specs, "sgd", learning_rate=1.0)


def slope(models, shape, p, seeds=4, scaled_rates=True):
    """Of log2 learning rate over log2 depth."""
    rates = []
    for model in models:
        activations, loss, init, batch, optimizer = functions(model, shape, p)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # deep for their width
            update = dm.maximal_update(
                activations, loss, init, batch, optimizer=optimizer if scaled_rates else None, seeds=seeds
            )
        rates.append(math.log2(update.learning_rate))
    return np.polyfit(np.log2([model.depth for model in models]), rates, 1)[0]


class TestSlopesInDepth:
    """docs/theory.md section 6: cross-entropy, ten classes, random labels, a readout of 1 / width."""

    def test_plain_network(self):
        models = [MLP(width=256, depth=depth) for depth in (4, 16)]
        assert -1.7 < slope(models, (64,), dm.parameterization("mup"), scaled_rates=False) < -1.3

    def test_residual_branches_of_one_layer(self):
        models = [ResidualMLP(width=256, depth=depth) for depth in (8, 32)]
        p = dm.parameterization("am_mup", lr_depth=0.0)
        assert -1.2 < slope(models, (64,), p) < -0.9

    def test_residual_branches_of_two_layers_both_scaled(self):
        models = [ResidualCNN(width=128, depth=depth, kernels=(1, 1)) for depth in (8, 32)]
        p = dm.parameterization("am_mup", lr_depth=0.0)
        assert -0.2 < slope(models, (1, 64), p) < 0.2

    def test_depth_mup(self):
        models = [ResidualMLP(width=256, depth=depth) for depth in (4, 32)]
        assert -0.08 < slope(models, (64,), dm.parameterization("depth_mup")) < 0.08
        assert (
            slope(models, (64,), dm.parameterization("mup"), seeds=1) < -3
        )  # and without its branch factor it explodes


def linear_update(depth):
    """Mean over layers of S_l / (eta_0 gamma_0 y)^2 of a linear residual network of infinite width, one sample, the
    branches trained: docs/theory.md section 3's recursion without its initial kernel."""
    q, a, change, total = 1 + 1 / depth, 0.0, 0.0, 0.0
    for layer in range(depth):
        drift = (q**layer + a) / depth
        backward = q ** (depth - layer - 1)
        change = q * change + (2 * drift * a + drift**2) * backward
        a += drift
        total += change
    return total / (depth + 1)


def test_linear_network_against_its_closed_form():
    coarse, fine = linear_update(2000), linear_update(4000)
    assert 2 * fine - coarse == pytest.approx(2 * math.e - math.e**2 / 3, rel=1e-5)  # 2.973545


@pytest.mark.usefixtures("optimized")
def test_linear_network_against_a_wide_one():
    width, depth, seeds = 800, 16, 8
    model = ResidualMLP(width=width, depth=depth, activation="linear", readout="linear", outputs=1)
    p = dm.parameterization("depth_mup")
    specs, f = model_specs(model, (8,)), p.forward_factors(width=width, depth=depth)
    x = np.full((1, 8), 1.0, np.float32)  # |x|^2 / D = 1
    branches_only = jax.tree.map(lambda spec: float(spec.in_branch), specs, is_leaf=lambda s: hasattr(s, "in_branch"))

    def init(key):
        return dm.rescale(p, specs, model.init(key, x, dm.ForwardFactors(1.0, 1.0, 1.0))["params"])

    def activations(params, x):
        return states(model.apply({"params": params}, x, f, mutable=["stream"])[1]["stream"])

    def loss(params, x):  # its gradient in the output is -y = -1
        return -model.apply({"params": params}, x, f).mean()

    tx = optax.chain(
        dm.scale_by_parameterization(p, specs, family="sgd"),
        optax.stateless(lambda u, _: jax.tree.map(jnp.multiply, u, branches_only)),
        optax.scale_by_learning_rate(1.0),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not deep for its width
        update = dm.maximal_update(activations, loss, init, x, optimizer=tx, seeds=seeds)
    assert update.per_layer[0] == 0
    assert update.mean == pytest.approx(linear_update(depth), rel=0.12)  # error of finite width
    assert update.learning_rate == update.mean**-0.5


def test_it_is_the_true_change_of_a_small_step():
    model = ResidualMLP(width=128, depth=4)
    p = dm.parameterization("depth_mup")
    activations, loss, init, batch, _ = functions(model, (64,), p)
    for name, family in (("sgd", None), ("adam", "adam")):
        optimizer = dm.optimizer(p, model_specs(model, (64,)), name, learning_rate=1.0)
        update = dm.maximal_update(activations, loss, init, batch, optimizer=optimizer, seeds=1)
        params = init(jax.random.key(np.uint32(0)))
        updates, _ = optimizer.update(jax.grad(loss)(params, batch), optimizer.init(params), params)
        ratios = []
        for share in (0.03, 1.0):
            eta = share * update.learning_rate
            moved = activations(jax.tree.map(lambda w, u, eta=eta: w + eta * u, params, updates), batch)
            true = [float(jnp.mean((a - b) ** 2)) for a, b in zip(moved, activations(params, batch), strict=True)]
            ratios.append(np.mean(true) / share**2)
        assert ratios[0] == pytest.approx(1, rel=0.03), family
        assert 0.3 < ratios[1] < 0.97, family  # docs/theory.md section 6: at eta* itself no longer


def test_update_sizes_of_a_known_function():
    changes, sizes = update_sizes(lambda w: [w**2, 3 * w], jnp.array([1.0, 2.0]), jnp.array([1.0, -1.0]))
    np.testing.assert_allclose(changes, [(4 + 16) / 2, 9])
    np.testing.assert_allclose(sizes, [(1 + 16) / 2, (9 + 36) / 2])


class TestAverages:
    update = MaximalUpdate(np.array([[1.0, 4.0, 16.0], [4.0, 16.0, 64.0], [1.0, 1.0, 1.0]]), np.full((3, 3), 4.0))

    def test_over_layers_then_the_median_over_seeds(self):
        assert self.update.mean == 7
        assert self.update.learning_rate == pytest.approx(7**-0.5)
        assert self.update._replace(average="geometric").mean == pytest.approx(4)
        assert self.update._replace(average="harmonic").mean == pytest.approx(3 / (1 + 1 / 4 + 1 / 16))
        assert self.update._replace(average="sum").mean == 21
        np.testing.assert_array_equal(self.update.per_layer, [1, 4, 16])

    def test_relative_to_the_layers(self):
        assert self.update.relative.mean == 7 / 4

    def test_stderr_is_that_of_a_median(self):
        rng = np.random.default_rng(0)
        logs = rng.normal(size=(4000, 9))  # of log2 s
        medians = -0.5 * np.median(logs, axis=1)
        stderrs = [MaximalUpdate(np.exp2(line)[:, None], np.ones((9, 1))).stderr for line in logs[:1000]]
        assert np.sqrt(np.mean(np.square(stderrs))) == pytest.approx(medians.std(), rel=0.06)
        assert math.isnan(MaximalUpdate(np.ones((1, 2)), np.ones((1, 2))).stderr)

    def test_merge_and_split(self):
        blocks = self.update.merged([1, 2])
        np.testing.assert_array_equal(blocks.per_seed, [[1, 20], [4, 80], [1, 2]])
        for average in ("arithmetic", "sum"):  # a block's energy is all that counts (paper B, A6)
            one = blocks._replace(average=average)
            assert one.split([3, 2]).merged([3, 2]).mean == pytest.approx(one.mean)
        split = self.update._replace(average="sum").split([2, 1, 5])
        assert split.mean == pytest.approx(21)  # the sum does not see it
        assert self.update._replace(average="geometric").split([2, 1, 5]).mean != pytest.approx(4)
        with pytest.raises(ValueError, match="there are 3 layers"):
            self.update.merged([1, 1])
        with pytest.raises(ValueError, match="numbers of parts of 3 layers"):
            self.update.split([1, 1])


class TestErrors:
    batch = jnp.ones((2, 3))

    def update(self, scale=1.0, **options):
        def activations(w, x):
            return [x @ w, jnp.square(x @ w)]

        init = lambda key: jax.random.normal(key, (3, 400))  # noqa: E731
        return dm.maximal_update(activations, lambda w, x: scale * (x @ w).sum(), init, self.batch, **options)

    def test_layers(self):
        assert self.update(layers=[1]).per_seed.shape == (8, 1)
        np.testing.assert_array_equal(self.update(layers=[1]).per_seed[:, 0], self.update().per_seed[:, 1])

    def test_probe(self):
        probed = self.update(probe=2 * self.batch)
        np.testing.assert_allclose(probed.per_seed[:, 0], 4 * self.update().per_seed[:, 0], rtol=1e-5)

    def test_unknown_average(self):
        with pytest.raises(ValueError, match="unknown average 'mean'"):
            self.update(average="mean")

    def test_nothing_moves(self):
        with pytest.raises(ValueError, match="does not move layer 0, 1"):
            self.update(scale=0.0)
        with pytest.raises(ValueError, match="is not finite"):
            self.update(scale=jnp.nan)

    def test_deep_for_its_width(self):
        with pytest.warns(UserWarning, match=r"depth 1 over width 3 is 0.33, above 0.05"):
            dm.maximal_update(
                lambda w, x: [x @ w, x @ w], lambda w, x: (x @ w).sum(), lambda key: jnp.ones((3, 3)), self.batch
            )

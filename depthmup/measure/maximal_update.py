"""The maximal-update learning rate of AM-muP: the learning rate whose first step changes the layers by 1 on average."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup.names import at_least_one, short, unknown
from depthmup.reading.graph.jaxpr import operations
from depthmup.rules.specs import PyTree

Average = Literal["arithmetic", "geometric", "harmonic", "sum"]  # over layers
AVERAGES: dict[Average, Callable[[np.ndarray], np.ndarray]] = {  # (..., layers) -> (...)
    "arithmetic": lambda s: s.mean(axis=-1),
    "geometric": lambda s: np.exp(np.log(s).mean(axis=-1)),
    "harmonic": lambda s: 1 / (1 / s).mean(axis=-1),
    "sum": lambda s: s.sum(axis=-1),
}
SHOWN = 9  # largest number of layers in str()
DEEP = 0.05  # ratio of depth to width above which finite width disturbs the result (docs/theory.md section 6a)


class MaximalUpdate(NamedTuple):
    """Mean square changes of the layers. One step of learning rate eta changes the output z^l of layer l by S_l = eta^2
    s_l in mean square, if changes are linear in eta."""

    per_seed: np.ndarray  # s_l, (seeds, layers)
    mean_squares: np.ndarray  # <(z^l)^2> of the layers' outputs themselves, (seeds, layers)
    average: Average = "arithmetic"  # the average over layers, a name in AVERAGES

    @property
    def per_layer(self) -> np.ndarray:
        """The median of s_l over seeds, (layers,)."""
        return np.median(self.per_seed, axis=0)

    @property
    def mean(self) -> float:
        """s, the average of s_l over layers: the median over seeds, since a few seeds of deep narrow networks are far
        off."""
        return float(np.median(self._means))

    @property
    def learning_rate(self) -> float:
        """eta* = s^(-1/2), at which the average of S_l is 1."""
        return self.mean**-0.5

    @property
    def stderr(self) -> float:
        """Standard error of log2 eta*, in octaves (factors of 2), from the scatter of seeds; NaN for one seed."""
        rates = -0.5 * np.log2(self._means)
        if len(rates) == 1:
            return float("nan")
        # A median's standard error is sqrt(pi / 2) times a mean's.
        return float(np.sqrt(np.pi / 2) * rates.std(ddof=1) / np.sqrt(len(rates)))

    @property
    def relative(self) -> MaximalUpdate:
        """The same measurement with changes relative to each layer's size, s_l / <(z^l)^2>. It is the better guide
        where features grow with depth (docs/laws.md). The idea is ours, not the paper's."""
        return self._replace(per_seed=self.per_seed / self.mean_squares, mean_squares=np.ones_like(self.mean_squares))

    def merged(self, blocks: Sequence[int]) -> MaximalUpdate:
        """Merge consecutive layers into blocks: s_l and mean squares are summed in each block (paper B, A6, "block
        energy").

        Args:
          blocks: number of layers of each block.

            >>> update = MaximalUpdate(np.array([[1.0, 2.0, 3.0]]), np.ones((1, 3)))
            >>> update.merged([1, 2]).per_layer
            array([1., 5.])

        Returns:
          A `MaximalUpdate` with len(blocks) layers.

        Raises ValueError if the numbers do not add up to all layers.
        """
        if not _parts(blocks) or sum(blocks) != self.per_seed.shape[1]:
            raise ValueError(f"blocks of {list(blocks)} layers: there are {self.per_seed.shape[1]} layers")
        starts = np.cumsum([0, *blocks[:-1]])
        per_seed, mean_squares = (np.add.reduceat(s, starts, axis=1) for s in (self.per_seed, self.mean_squares))
        return self._replace(per_seed=per_seed, mean_squares=mean_squares)

    def split(self, parts: Sequence[int]) -> MaximalUpdate:
        """Split layer l into parts[l] layers, each with an equal share of its s_l and mean square.

        Args:
          parts: a number of at least 1 for every layer.

        Returns:
          A `MaximalUpdate` with sum(parts) layers; `merged(parts)` undoes it.

        Raises ValueError for other parts.
        """
        if not _parts(parts) or len(parts) != self.per_seed.shape[1]:
            raise ValueError(f"{list(parts)} are not the numbers of parts of {self.per_seed.shape[1]} layers")
        per_seed, squares = (
            np.repeat(s / np.asarray(parts), parts, axis=1) for s in (self.per_seed, self.mean_squares)
        )
        return self._replace(per_seed=per_seed, mean_squares=squares)

    @property
    def _means(self) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return AVERAGES[self.average](self.per_seed)

    def __str__(self) -> str:
        error = "" if np.isnan(self.stderr) else f" +- {self.stderr:.2f}"
        layers = np.unique(np.linspace(0, len(self.per_layer) - 1, SHOWN).round().astype(int))
        profile = ", ".join(f"{layer}: {self.per_layer[layer]:.3g}" for layer in layers)
        rate = f"{self.learning_rate:.4g} (log2 {np.log2(self.learning_rate):.2f}{error})"
        return f"maximal-update learning rate {rate}\ns_l at layer {profile}"


def _parts(numbers: Sequence[int]) -> bool:
    """Whether these are whole numbers of at least 1."""
    return all(isinstance(number, int | np.integer) and number > 0 for number in numbers)


def maximal_update(
    activations: Callable[[PyTree, PyTree], Any],
    loss: Callable[[PyTree, PyTree], jax.Array],
    init: Callable[[jax.Array], PyTree],
    batch: PyTree,
    *,
    probe: PyTree = None,
    optimizer: optax.GradientTransformation | None = None,
    layers: Sequence[int] | None = None,
    average: Average = "arithmetic",
    seeds: int = 8,
) -> MaximalUpdate:
    """The learning rate whose first step changes the layers by 1 on average, from a gradient and a jvp for each seed.

    v = the optimizer's first step on `loss` with learning rate 1;  dz = d/d eta z(theta + eta v) at eta = 0;
    s_l = <(dz^l)^2> over examples and units;  eta* = (average_l s_l)^(-1/2).  docs/theory.md section 6 (paper B, 3.1).
    The change is linearised. The true average at eta* is .3 to .85, since a step of this size is no longer small.

    Args:
      activations: (parameters, batch) -> the layers' outputs z^l, (examples, ..., units) each, as a list or tuple in
        the order of depth (JAX sorts a dict by its keys): the output of the read-in and of every block.
      loss: (parameters, batch) -> scalar.
      init: PRNG key -> parameters as training starts with them.
      batch: the batch of the step.
      probe: the batch on which the change is measured; None: the batch of the step.
      optimizer: of learning rate 1, such as `dm.optimizer(p, specs, "adam", learning_rate=1.0)`; None: SGD.
      layers: indices of the z^l that count; None: all.
      average: "arithmetic" (AM-muP), "geometric", "harmonic" or "sum".
      seeds: number of initializations.

    Returns:
      A `MaximalUpdate`: s_l of each seed and layer, (seeds, layers), and the learning rate that follows.

    Warns if the depth (number of activations minus 1) is above .05 times the width: one seed then says little. Raises
    ValueError for an unknown average, no activations or layers that are none of them, or if no layer moves or a change
    is not finite.
    """
    tx = optax.sgd(1.0) if optimizer is None else optimizer

    @jax.jit
    def sizes(seed: Any, batch: PyTree, probe: PyTree) -> jax.Array:
        params = init(jax.random.key(seed))
        direction, _ = tx.update(jax.grad(loss)(params, batch), tx.init(params), params)
        return update_sizes(lambda params: activations(params, probe), params, direction)

    probe = batch if probe is None else probe
    shapes = jax.tree.leaves(jax.eval_shape(lambda key: activations(init(key), probe), jax.random.key(0)))
    if not shapes:
        raise ValueError("activations must return the outputs of the layers, and it returns none")
    warn_if_deep(len(shapes) - 1, min(shape.shape[-1] for shape in shapes))
    return over_seeds(lambda seed: sizes(seed, batch, probe), seeds, layers, average)


def over_seeds(
    sizes: Callable[[np.uint32], jax.Array], seeds: int, layers: Sequence[int] | None, average: Average
) -> MaximalUpdate:
    """The measurement of `update_sizes` of each seed; the other arguments are those of `maximal_update`."""
    if average not in AVERAGES:
        raise unknown("average", average, AVERAGES)
    measured = np.stack([np.asarray(sizes(np.uint32(seed))) for seed in range(at_least_one("seeds", seeds))], axis=1)
    if layers is not None:
        count, chosen = measured.shape[-1], list(layers)
        if not chosen or not np.isin(chosen, np.arange(-count, count)).all():
            raise ValueError(f"layers must be some of 0..{count - 1}, got {short(chosen)}")
        measured = measured[..., chosen]
    per_seed, mean_squares = measured
    return checked_update(MaximalUpdate(per_seed, mean_squares, average))


def update_sizes(activations: Callable[[PyTree], Any], params: PyTree, direction: PyTree) -> jax.Array:
    """(2, layers): first s_l, the mean square of each activation's linearised change for a step along `direction`; then
    the mean square of each activation itself."""
    program = jax.make_jaxpr(activations)(params)
    if any("custom_vjp" in name for equation in program.eqns for name in operations(equation)):
        # It has a reverse mode alone, which is linear in what it takes: the reverse mode of that is the jvp.
        values, pull = jax.vjp(activations, params)
        _, push = jax.vjp(pull, jax.tree.map(jnp.zeros_like, values))
        (changes,) = push((direction,))
    else:
        values, changes = jax.jvp(activations, (params,), (direction,))
    return jnp.stack([jnp.stack([jnp.square(z).mean() for z in jax.tree.leaves(tree)]) for tree in (changes, values)])


def rates_by_rule(updates: Mapping[Any, MaximalUpdate]) -> dict[str, Mapping[float, float | None]]:
    """{rule: {depth: learning rate}} of measurements at several depths: of the sums of update sizes, and of the sizes
    relative to those of the activations."""
    return {
        "calibrated": {depth: update.learning_rate for depth, update in updates.items()},
        "relative": {depth: update.relative.learning_rate for depth, update in updates.items()},
    }


def checked_update(update: MaximalUpdate) -> MaximalUpdate:
    """Returns `update`. Raises ValueError if its average change is 0 or not finite: no learning rate follows then."""
    if not 0 < update.mean < np.inf:
        still = np.flatnonzero(update.per_layer == 0).tolist()
        what = f"does not move layer {', '.join(map(str, still))}" if still else "is not finite"
        raise ValueError(
            f"the first step {what}: the {update.average} average is {update.mean:g}. Behind a readout that starts at "
            "0 there is no gradient, and a parameterization that explodes has no update to measure"
        )
    return update


def warn_if_deep(depth: int, width: int) -> None:
    if depth > DEEP * width:
        warnings.warn(
            f"depth {depth} over width {width} is {depth / width:.2f}, above {DEEP}: the maximal-update learning rate "
            "scatters between seeds there and leaves its law; take a wider network or more seeds",
            stacklevel=3,
        )

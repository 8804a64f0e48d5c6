"""Which trainings tell most about a large run for what they cost: sequential design on the law of `scaling_law`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from depthmup.fit.joint_fit import FREEDOM, mean_loss
from depthmup.fit.law_rows import trainings
from depthmup.fit.scaling_law import FAILS, QUANTILES, STEP, ScalingLaw
from depthmup.names import NOT_NEGATIVE, POSITIVE

VIEWS = (0.1, 0.3, 0.5, 0.7, 0.9)  # quantiles of the target's best rate: draws at which the trainings are linearized
FORM = 0.3  # share of the excess loss by which a valley may have another form than the law's, at all its rates alike
LOST = (FREEDOM + 3) / (FREEDOM + 1)  # variance of Student's noise, as its Fisher information has it


class Design(NamedTuple):
    """What to train next.

    rows: numbers of the candidates, from 0, in the order in which to train them. spent: (rows + 1,), what they cost
    together after each of them, 0 first. cost, worst_cost: (rows + 1,), the expected and the 97.5% cost of the target's
    best rate as shares of the loss, as they are now and as they are expected to be after each training; means over the
    targets.
    """

    rows: tuple[int, ...]
    spent: np.ndarray
    cost: np.ndarray
    worst_cost: np.ndarray

    def __str__(self) -> str:
        before, after = (f"{100 * self.cost[i]:.2g}%, at most {100 * self.worst_cost[i]:.2g}%" for i in (0, -1))
        count = f"{len(self.rows)} training{'s' * (len(self.rows) != 1)}"
        return f"{count} for {self.spent[-1]:.4g}: the rate costs {before} now, {after} after them (expected)"


def design(
    law: ScalingLaw,
    candidates: Any,
    target: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    budget: float = math.inf,
    tolerance: float = 0.0,
) -> Design:
    """The trainings to make next, of a table of candidates, so that the best rate of a target is known well for what
    they cost.

    Each choice is the one whose result is expected to lower the cost of the target's rate most for each unit of its own
    cost, given those before it. The law is linearized at five draws of its posterior, which differ in the best rate of
    the target. When the trainings are made, fit the law to all rows and ask again.

    Args:
      law: of the trainings so far.
      candidates: columns of the law's sizes, of its hyperparameter and "cost", what a training costs, in any unit, and
        where known "seed". In any form that `scaling_law` takes. Those that the law's rows have are passed over.
      target: sizes of the run that the law is asked about, as `ScalingLaw.at` takes them; or several.
      budget: what the trainings may cost together.
      tolerance: stop where the expected 97.5% cost of the rate is at most this share of the loss: .01 is 1%.

    Returns:
      A `Design`: the chosen candidates in order, and the expected cost after each.

    Raises ValueError for a missing column, for a size, rate or cost that is not positive, and for a target that the law
    refuses.
    """
    if not budget > 0:
        raise ValueError(f"the budget must be positive, got {budget}")
    NOT_NEGATIVE.check("tolerance", tolerance)
    columns = law._columns(candidates, ("cost", law.hyperparameter, *law.axes))
    sizes = {axis: POSITIVE.array(axis, columns[axis]) for axis in law.axes}
    rates = POSITIVE.array(law.hyperparameter, columns[law.hyperparameter])
    costs = POSITIVE.array("cost", columns["cost"])
    free = np.array([t not in law._trainings for t in trainings(list(sizes.values()), rates, columns.get("seed"))])
    targets = [law._target(one) for one in ([target] if isinstance(target, Mapping) else target)]
    if not targets:
        raise ValueError("there is no target: give the sizes of the run that the law is asked about")
    of_targets = {axis: np.concatenate([sizes[axis] for sizes in targets]) for axis in law.axes}
    state = _State(law, sizes, np.log2(rates), of_targets)

    rows, spent, left = list[int](), [0.0], [state.costs()]
    while left[-1][1] > tolerance:
        affordable = free & (spent[-1] + costs <= budget)
        gains = np.where(affordable, state.gains() / costs, 0.0)
        best = int(gains.argmax())
        if not gains[best] > 0:
            break
        state.train(best)
        free[best] = False
        rows.append(best)
        spent.append(spent[-1] + costs[best])
        left.append(state.costs())
    return Design(tuple(rows), np.array(spent), *np.array(left).T)


class _State:
    """The Gaussian posterior of the law at several views, given trainings whose results are not known yet.

    A view is a draw of the posterior at which the results of trainings and the optima of targets are linear in standard
    normal variables. Conditioning on a training lowers variances and covariances by rank one, whatever its result.
    """

    def __init__(
        self, law: ScalingLaw, sizes: Mapping[str, np.ndarray], rates: np.ndarray, targets: Mapping[str, np.ndarray]
    ) -> None:
        # Points: the targets, then the sizes of the candidates.
        places, of_candidate = np.unique(
            np.column_stack([sizes[axis] for axis in law.axes]), axis=0, return_inverse=True
        )
        points = {axis: np.concatenate([targets[axis], places[:, i]]) for i, axis in enumerate(law.axes)}
        count = len(targets[law.axes[0]])
        self._point = of_candidate.ravel() + count
        columns = law._of.coordinates.design(points)
        where = law._of.coordinates.places(columns)
        self._names, self._basis = law._fit.basis(where, columns)
        self._gram = self._basis @ self._basis.transpose(0, 2, 1)
        links = {name: link.drawn for name, link in law._fit.links_at(where, columns).items()}
        self._drawn = law._drawn(targets)
        self._optimum = _optimum(self._drawn.links, self._drawn.batch)
        self._rate = np.median(self._optimum, axis=0)
        batch = columns["batch_size"]
        of_draws = _optimum({name: drawn[:, :count] for name, drawn in links.items()}, batch[:count]).mean(axis=1)
        views = np.argsort(of_draws)[[round(view * (len(of_draws) - 1)) for view in VIEWS]]
        self._views = [
            self._view(law, {name: drawn[view] for name, drawn in links.items()}, batch, rates, count) for view in views
        ]

    def _view(
        self, law: ScalingLaw, at: Mapping[str, np.ndarray], batch: np.ndarray, rates: np.ndarray, count: int
    ) -> _View:
        """The linear view at one draw of the links, {link: (points,)}, of which the first `count` are targets."""
        here, batch_here = {name: value[self._point] for name, value in at.items()}, batch[self._point]
        y, excess, optimum = mean_loss(here, rates, batch_here)
        changed = [mean_loss({**here, name: here[name] + STEP}, rates, batch_here)[0] for name in self._names]
        slopes = (np.column_stack(changed) - y[:, None]) / STEP
        spread = law._fit.spread(excess, rates > optimum)

        target = {name: value[:count] for name, value in at.items()}
        moved = [_optimum({**target, name: target[name] + STEP}, batch[:count]) for name in self._names]
        by_link = (np.array(moved) - _optimum(target, batch[:count])) / STEP
        loadings = np.einsum("lt,tlm->tm", by_link, self._basis[:count], optimize=True)
        variance = (loadings**2).sum(axis=1)
        return _View(
            slopes,
            variance=np.einsum("cl,clk,ck->c", slopes, self._gram[self._point], slopes, optimize=True),
            noise=np.where(excess < FAILS, LOST * spread**2 + (FORM * excess) ** 2, math.inf),
            loadings=loadings,
            covariance=self._results(slopes, loadings),
            left=variance.copy(),
            before=variance,
            curvature=np.exp(target["curvature"]),
            steps=[],
        )

    def _results(self, slopes: np.ndarray, loadings: np.ndarray) -> np.ndarray:
        """(n, candidates), the covariance of the candidates' results with what has these loadings, (n, variables)."""
        by_point = self._basis @ loadings.T
        return np.asarray(np.einsum("cln,cl->nc", by_point[self._point], slopes, optimize=True))

    def gains(self) -> np.ndarray:
        """(candidates,), by how much each training is expected to lower the cost of the targets' rates."""
        each = [0.5 * v.curvature @ v.covariance**2 / (v.variance + v.noise) for v in self._views]
        return np.asarray(np.mean(each, axis=0))

    def train(self, row: int) -> None:
        """Condition on the result of a candidate."""
        for view in self._views:
            if view.noise[row] == math.inf:
                continue
            scale = math.sqrt(view.variance[row] + view.noise[row])
            loading = view.slopes[row] @ self._basis[self._point[row]]
            with_it = self._results(view.slopes, loading[None])[0]
            with_it -= sum(step * step[row] for step in view.steps)
            with_it /= scale
            of_target = view.covariance[:, row] / scale
            view.left[:] = np.maximum(view.left - of_target**2, 0)
            view.covariance[:] -= of_target[:, None] * with_it
            view.variance[:] = np.maximum(view.variance - with_it**2, 0)
            view.steps.append(with_it)

    def costs(self) -> tuple[float, float]:
        """(expected cost, 97.5% cost) of the targets' rates, means over the targets."""
        shares = np.mean([view.left / view.before for view in self._views], axis=0)
        # The optimum's draws move towards the rate; their curves, seen from the optimum, stay.
        off = (self._optimum - self._rate) * np.sqrt(shares)
        excess = mean_loss(self._drawn.links, self._optimum - off, self._drawn.batch)[1]
        costs = np.expm1(np.minimum(excess, FAILS))
        return float(costs.mean()), float(np.quantile(costs, QUANTILES[1], axis=0).mean())


def _optimum(links: Mapping[str, np.ndarray], batch: np.ndarray) -> np.ndarray:
    """log2 of the best rate."""
    return mean_loss(links, np.zeros(1), batch)[2]


class _View(NamedTuple):
    """One linear view. slopes: (candidates, links), of the results. variance, noise: (candidates,) of the results.

    Of the targets' optima: loadings (targets, variables) on the normal variables, covariance (targets, candidates) with
    the results, left and before (targets,), the variances now and at first. curvature: (targets,), of their valleys.
    steps: (candidates,) for each training so far, what its result explains of the others.
    """

    slopes: np.ndarray
    variance: np.ndarray
    noise: np.ndarray
    loadings: np.ndarray
    covariance: np.ndarray
    left: np.ndarray
    before: np.ndarray
    curvature: np.ndarray
    steps: list[np.ndarray]

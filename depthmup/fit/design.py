"""Which trainings tell most about a large run for what they cost: sequential design on the law of `scaling_law`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from depthmup.fit.joint_fit import FREEDOM, mean_loss
from depthmup.fit.law_rows import trainings
from depthmup.fit.scaling_law import FAILS, QUANTILES, STEP, ScalingLaw
from depthmup.names import NOT_NEGATIVE, POSITIVE, unknown

Aim = Literal["rate", "loss"]
VIEWS = (0.1, 0.3, 0.5, 0.7, 0.9)  # quantiles of the target's best rate: draws at which the trainings are linearized
FORM = 0.3  # share of the excess loss by which a valley may have another form than the law's, at all its rates alike
LOST = (FREEDOM + 3) / (FREEDOM + 1)  # variance of Student's noise, as its Fisher information has it


class Design(NamedTuple):
    """What to train next.

    rows: numbers of the candidates, from 0, in the order in which to train them. spent: (rows + 1,), what they cost
    together after each of them, 0 first. cost, worst_cost: (rows + 1,), the expected and the 97.5% cost of the target's
    best rate as shares of the loss, as they are now and as they are expected to be after each training; means over the
    targets. spread: (rows + 1,), likewise the standard deviation of the logarithm of the target's loss.
    """

    rows: tuple[int, ...]
    spent: np.ndarray
    cost: np.ndarray
    worst_cost: np.ndarray
    spread: np.ndarray

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
    aim: Aim = "rate",
) -> Design:
    """The trainings to make next, of a table of candidates, so that a target is known best for what they cost.

    Each choice is the one whose result is expected to lower the cost of the target's best rate most for each unit of
    its own cost, given those before it. The law is linearized at five draws of its posterior, which differ in the best
    rate of the target. When the trainings are made, fit the law to all rows and ask again.

    Args:
      law: of the trainings so far.
      candidates: columns of the law's sizes, of its hyperparameter and "cost", what a training costs, in any unit; where
        known also "seed". In any form that `scaling_law` takes. Those that the law's rows have are passed over.
      target: sizes of the run that the law is asked about, as `ScalingLaw.at` takes them; or several.
      budget: what the trainings may cost together.
      tolerance: stop where the expected 97.5% cost of the rate is at most this share of the loss: .01 is 1%.
      aim: what is to be known: the best "rate" of the target, or its "loss".

    Raises ValueError for a missing column, for a size, rate or cost that is not positive, and for a target that the law
    refuses.
    """
    if aim not in ("rate", "loss"):
        raise unknown("aim", aim, ("rate", "loss"))
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
    state = _State(law, sizes, np.log2(rates), {axis: np.concatenate([t[axis] for t in targets]) for axis in law.axes}, aim)

    rows, spent, left = list[int](), [0.0], [state.left()]
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
        left.append(state.left())
    return Design(tuple(rows), np.array(spent), *np.array(left).T)


class _State:
    """The Gaussian posterior of the law at several views, given trainings whose results are not known yet.

    A view is a draw of the posterior at which results and aims are linear in standard normal variables. Conditioning on
    a training lowers variances and covariances by rank one, whatever its result.
    """

    def __init__(
        self,
        law: ScalingLaw,
        sizes: Mapping[str, np.ndarray],
        rates: np.ndarray,
        targets: Mapping[str, np.ndarray],
        aim: Aim,
    ) -> None:
        count, of = len(targets[law.axes[0]]), law._of.coordinates
        places = np.column_stack([sizes[axis] for axis in law.axes])
        places, self._point = np.unique(places, axis=0, return_inverse=True)
        self._point = self._point.ravel()
        every = {
            axis: np.concatenate([targets[axis], places[:, i]]) for i, axis in enumerate(law.axes)
        }  # points: the targets, then the sizes of the candidates
        columns = of.design(every)
        self._point = self._point + count
        self._names, self._basis = law._fit.basis(of.places(columns), columns)
        links = {name: link.drawn for name, link in law._fit.links_at(of.places(columns), columns).items()}
        batch = columns["batch_size"]
        self._gram = self._basis @ self._basis.transpose(0, 2, 1)
        # What the target's rate may cost now, of all draws: it shrinks with the spread of the optimum.
        self._drawn = law._drawn(targets)
        self._optimum = mean_loss(self._drawn.links, np.zeros(1), self._drawn.batch)[2]
        self._rate = np.median(self._optimum, axis=0)
        order = np.argsort(mean_loss({n: d[:, :count] for n, d in links.items()}, np.zeros(1), batch[:count])[2].mean(1))
        views = order[[round(view * (len(order) - 1)) for view in VIEWS]]
        self._views = [self._view(law, {n: d[view] for n, d in links.items()}, batch, rates, count) for view in views]
        self._weight = "optimum" if aim == "rate" else "loss"

    def _view(
        self, law: ScalingLaw, at: Mapping[str, np.ndarray], batch: np.ndarray, rates: np.ndarray, count: int
    ) -> _View:
        """The linear view at one draw of the links, {link: (points,)}."""
        here = {name: value[self._point] for name, value in at.items()}
        y, excess, optimum = mean_loss(here, rates, batch[self._point])
        slopes = np.column_stack(
            [
                (mean_loss({**here, name: here[name] + STEP}, rates, batch[self._point])[0] - y) / STEP
                for name in self._names
            ]
        )
        spread = law._fit.spread(excess, rates > optimum)
        target = {name: value[:count] for name, value in at.items()}

        def aims(links: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            log, excess, best = mean_loss(links, np.zeros(1), batch[:count])
            return {"optimum": best, "loss": log - excess}

        base, slopes_of = aims(target), dict[str, list[np.ndarray]]()
        for name in self._names:
            for aim, value in aims({**target, name: target[name] + STEP}).items():
                slopes_of.setdefault(aim, []).append((value - base[aim]) / STEP)
        loadings = {
            aim: np.einsum("lt,tlm->tm", np.array(parts), self._basis[:count], optimize=True)
            for aim, parts in slopes_of.items()
        }
        return _View(
            slopes,
            variance=np.einsum("cl,clk,ck->c", slopes, self._gram[self._point], slopes, optimize=True),
            noise=np.where(excess < FAILS, LOST * spread**2 + (FORM * excess) ** 2, math.inf),
            loadings=loadings,
            covariance={aim: self._results(slopes, loading) for aim, loading in loadings.items()},
            left={aim: (loading**2).sum(1) for aim, loading in loadings.items()},
            before={aim: (loading**2).sum(1) for aim, loading in loadings.items()},
            curvature=np.exp(target["curvature"]),
            steps=[],
        )

    def _results(self, slopes: np.ndarray, loading: np.ndarray) -> np.ndarray:
        """(n, candidates), the covariance of all candidates' results with what has these loadings, (n, variables)."""
        by_point = self._basis @ loading.T
        return np.asarray(np.einsum("cln,cl->nc", by_point[self._point], slopes, optimize=True))

    def gains(self) -> np.ndarray:
        """(candidates,), by how much each training is expected to lower the aim, a cost or a variance."""
        result = np.zeros(len(self._point))
        for view in self._views:
            weight = 0.5 * view.curvature if self._weight == "optimum" else np.ones(len(view.curvature))
            result += weight @ view.covariance[self._weight] ** 2 / (view.variance + view.noise)
        return result / len(self._views)

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
            for aim, covariance in view.covariance.items():
                of_aim = covariance[:, row] / scale
                view.left[aim][:] = np.maximum(view.left[aim] - of_aim**2, 0)
                covariance -= of_aim[:, None] * with_it
            view.variance[:] = np.maximum(view.variance - with_it**2, 0)
            view.steps.append(with_it)

    def left(self) -> tuple[float, float, float]:
        """(expected cost, 97.5% cost, spread of the loss), means over the targets."""
        shares = {
            aim: np.mean([view.left[aim] / view.before[aim] for view in self._views], axis=0)
            for aim in ("optimum", "loss")
        }
        # The optimum's draws move towards the rate; its curve, seen from the optimum, stays.
        off = (self._optimum - self._rate) * np.sqrt(shares["optimum"])
        excess = mean_loss(self._drawn.links, self._optimum - off, self._drawn.batch)[1]
        costs = np.expm1(np.minimum(excess, FAILS))
        variance = np.mean([view.left["loss"] for view in self._views], axis=0)
        worst = np.quantile(costs, QUANTILES[1], axis=0)
        return float(costs.mean()), float(worst.mean()), float(np.sqrt(variance).mean())


class _View(NamedTuple):
    """One linear view. slopes: (candidates, links), of the results. variance, noise: (candidates,) of the results.

    Of each aim, "optimum" and "loss": loadings (targets, variables) on the normal variables, covariance (targets,
    candidates) with the results, left and before (targets,), the variances now and at first. curvature: (targets,).
    steps: (candidates,) for each training so far, what its result explains of the others.
    """

    slopes: np.ndarray
    variance: np.ndarray
    noise: np.ndarray
    loadings: dict[str, np.ndarray]
    covariance: dict[str, np.ndarray]
    left: dict[str, np.ndarray]
    before: dict[str, np.ndarray]
    curvature: np.ndarray
    steps: list[np.ndarray]

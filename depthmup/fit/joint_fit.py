"""One Bayesian law of the final log loss over sizes and hyperparameter: the fit under `fit.scaling_law`.

log loss = base(model size, data) + cost of the batch size + valley(log2 rate - optimum) + discrepancies + noise

Every term is a function of a few links, and each link is a plane in log2 of the sizes:
  base      log(E + exp(size) + exp(data)), the law of Hoffmann et al. (arXiv 2203.15556);
  batch     what another batch size than the best one costs at as much data;
  valley    0 at the optimum; its curvature and the steepness of its two sides;
  optimum   a plane with the prior's exponents, that bends above a critical batch size where the law has a bend;
  cliff     a further rise at high rates.
Discrepancies are Gaussian processes over the sizes, some smooth and some independent, of the level and of the optimum:
they widen with the distance from the data. The noise is Student's t, wider away from the optimum, most above it.

The mode is found by Levenberg-Marquardt over parameters and whitened discrepancies, the scales of discrepancies and
noise by EM, the covariance by Laplace.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

LN2 = math.log(2.0)
FREEDOM = 4.0  # degrees of freedom of the noise
BELOW = 0.3  # the part of the excess that scales the noise below the optimum
TOO_HIGH = 0.5  # octaves: a rate that diverges is above the optimum, give or take so many
WEIGHT = 8.0  # degrees of freedom of the priors of the scales
SCALED = 20.0  # those of the noise per excess
FAR = 0.01  # excess of the log loss from which a training tells of the noise per excess
RESOLVED = 0.03  # octaves of the optimum, shares of the curvature: smaller discrepancies are left out
ROUNDS = 60
CONVERGED = 0.03  # change of the logarithms of the scales
SMOOTH = 0.3  # octaves over which the cliff begins
STEEPEST = 0.1  # steepness of the valley below the optimum: there a training is only shorter
REACH = 10.0  # octaves from the optimum at which the valley ends
STEP = 1e-5  # of derivatives
DRAWS = 1000  # of the posterior


Links = Mapping[str, Mapping[str, tuple[float, float]]]  # {link: {column of the design: (mean, sd) of its coefficient}}


class Kernel(NamedTuple):
    """The covariance of a discrepancy between sizes: smooth over `length` octaves (Matern 5/2), or independent (0).

    of: what it differs between: models, models and data, or batch sizes, too. scale: the prior's standard deviation.
    """

    link: str
    of: Literal["model", "data", "batch"]
    length: float
    scale: float

    def places(self, sizes: np.ndarray) -> np.ndarray:
        """The columns of sizes between which it differs."""
        return sizes[:, : sizes.shape[1] - {"model": 2, "data": 1, "batch": 0}[self.of]]

    def between(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """(n, m), of (n, axes) and (m, axes) sizes in octaves, whose last axes are data and batch size."""
        one, other = self.places(one), self.places(other)
        distance = np.sqrt(((one[:, None] - other[None]) ** 2).sum(-1))
        if not self.length:
            return (distance < 1e-6).astype(float)
        r = math.sqrt(5) * distance / self.length
        return np.asarray((1 + r + r * r / 3) * np.exp(-r))


KERNELS = (
    Kernel("level", "data", 3.0, 0.012),
    Kernel("level", "data", 0.0, 0.0012),
    Kernel("level", "batch", 2.0, 0.003),
    Kernel("level", "batch", 0.0, 0.0012),
    Kernel("optimum", "batch", 2.0, 0.2),
    Kernel("optimum", "data", 0.0, 0.2),
    Kernel("optimum", "model", 0.0, 0.15),
    Kernel("curvature", "batch", 3.0, 0.2),
)
NOISE_PER_EXCESS = 0.08


def two_sided(z: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """0 at 0, unit curvature, growing as 2^(-left z) and 2^(right z)."""
    p, q, z = left * LN2, right * LN2, np.clip(z, -12, 12)
    return np.asarray((q * np.exp(-p * z) + p * np.exp(q * z) - (p + q)) / (p * q * (p + q)))


def valley(u: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """0 at 0, unit curvature; each side grows linearly (negative), as a parabola (0) or exponentially (positive)."""
    left = STEEPEST - SMOOTH * softplus((STEEPEST - left) / SMOOTH)
    s, v = np.clip(np.where(u < 0, left, right), -3.0, 1.5), np.minimum(np.abs(u), REACH)
    s = np.where(np.abs(s) < 1e-2, 1e-2, s)
    return np.asarray((np.expm1(s * v) - s * v) / s**2)


def pivoted(covariance: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """A root of a covariance, (n, m), up to variances below `least`; and the m pivots, whose rows are triangular."""
    from scipy.linalg import lapack

    factor, pivots, rank, _ = lapack.dpstrf(covariance, tol=least, lower=1)
    root = np.zeros((len(covariance), rank))
    root[pivots - 1] = np.tril(factor)[:, :rank]
    return root, pivots[:rank] - 1


def softplus(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp(0.0, x))


def _scaling(excess: np.ndarray, above: np.ndarray) -> np.ndarray:
    """The part of the excess that scales the noise."""
    return np.where(above, excess, BELOW * excess)


def mean_loss(eta: Mapping[str, np.ndarray], rate: np.ndarray, batch: np.ndarray) -> tuple[np.ndarray, ...]:
    """(log loss, excess over the best rate's, log2 of the best rate) at log2 rates, of the values of the links."""
    terms = [eta[name] for name in ("floor", "size", "data") if name in eta]
    y = functools.reduce(np.logaddexp, terms) + eta["level"]
    optimum, curvature = eta["optimum"], eta["curvature"]
    if "bend" in eta:
        width = np.exp(eta["sharpness"])
        over = width * softplus((batch - eta["bend"]) / width)
        optimum, curvature = optimum - eta["slope"] * over, curvature + eta["flatter"] * over
    if "best batch" in eta:
        sides = (np.exp(eta["small batch"]), np.exp(eta["large batch"]))
        y = y + np.exp(eta["batch"]) * two_sided(batch - eta["best batch"], *sides)
    excess = np.exp(curvature) * valley(rate - optimum, eta["left"], eta["right"])
    cliff = (SMOOTH * softplus((rate - eta["cliff"]) / SMOOTH)) ** 2
    excess = excess + np.exp(eta["height"]) * cliff
    return y + excess, excess, optimum


class Rows(NamedTuple):
    """Trainings to fit.

    sizes: (groups, axes) in octaves, the batch size last. design: {column: (groups,)}, what links are planes of.
    group: (rows,), the group of each. rate, loss: (rows,), log2 of the rate and the log loss. weight: (rows,), how
    many seeds, over the usual number. diverged: (rows,), whether a row says only that its rate is too high.
    """

    sizes: np.ndarray
    design: Mapping[str, np.ndarray]
    group: np.ndarray
    rate: np.ndarray
    loss: np.ndarray
    weight: np.ndarray
    diverged: np.ndarray


@dataclasses.dataclass
class JointFit:
    """A fitted law. links: the priors of the coefficients of each link; noise: the prior's standard deviation."""

    rows: Rows
    links: Links
    noise: float
    kernels: Sequence[Kernel] = KERNELS
    q: np.ndarray = dataclasses.field(init=False)  # (size,), the mode: parameters, then whitened discrepancies
    root: np.ndarray = dataclasses.field(init=False)  # (size, size), Cholesky factor of the Hessian there

    def __post_init__(self) -> None:
        self.names = [(link, column) for link, prior in self.links.items() for column in prior]
        self.mean, self.sd = np.array([self.links[link][column] for link, column in self.names]).T
        self.columns = {
            link: np.array([i for i, (name, _) in enumerate(self.names) if name == link]) for link in self.links
        }
        self.noise0, self.per_excess = self.noise, NOISE_PER_EXCESS
        self.scales = np.array([kernel.scale for kernel in self.kernels])
        self.rough = [link for link in ("level", "optimum", "curvature") if any(k.link == link for k in self.kernels)]
        self.covariances = [kernel.between(self.rows.sizes, self.rows.sizes) for kernel in self.kernels]
        self.features = {
            link: np.column_stack([self.rows.design[column] for column in prior]) for link, prior in self.links.items()
        }
        self._prepare()

    def _prepare(self) -> None:
        """Roots of the discrepancies' covariances, which have fewer columns than groups, and where each lies in q."""
        self.roots, self.pivots = dict[str, np.ndarray](), dict[str, np.ndarray]()
        end = len(self.names)
        self.blocks = dict[str, slice]()
        for link in self.rough:
            least = self.noise0 / 2 if link == "level" else RESOLVED
            self.roots[link], self.pivots[link] = pivoted(self._covariance(link, self.covariances), least**2)
            self.blocks[link] = slice(end, end + len(self.pivots[link]))
            end = self.blocks[link].stop
        self.size = end
        self.precision = np.concatenate([1 / self.sd**2, np.ones(self.size - len(self.mean))])
        self.centre = np.concatenate([self.mean, np.zeros(self.size - len(self.mean))])

    def _covariance(self, link: str, matrices: Sequence[np.ndarray]) -> np.ndarray:
        parts = zip(self.kernels, self.scales, matrices, strict=True)
        return np.asarray(sum(scale**2 * matrix for kernel, scale, matrix in parts if kernel.link == link))

    def _eta(self, q: np.ndarray) -> dict[str, np.ndarray]:
        """{link: (groups,)} at parameters and whitened discrepancies q."""
        eta = {link: features @ q[self.columns[link]] for link, features in self.features.items()}
        for link in self.rough:
            eta[link] = eta.get(link, 0.0) + self.roots[link] @ q[self.blocks[link]]
        return eta

    def _values(self, eta: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows,): predicted log loss, or the optimum for a row that diverged; the excess, that below the optimum
        counted as BELOW of it."""
        rows = self.rows
        batch = rows.design["batch_size"][rows.group] if "batch_size" in rows.design else np.zeros(len(rows.group))
        y, excess, optimum = mean_loss({k: v[rows.group] for k, v in eta.items()}, rows.rate, batch)
        return np.where(rows.diverged, optimum, y), _scaling(excess, rows.rate > optimum), optimum

    def _spread(self, scaling: np.ndarray) -> np.ndarray:
        return np.asarray(np.sqrt(self.noise**2 / self.rows.weight + (self.per_excess * scaling) ** 2))

    def spread(self, excess: np.ndarray, above: np.ndarray) -> np.ndarray:
        """The scale of the noise of one training. above: whether its rate is above the optimum."""
        return np.asarray(np.hypot(self.noise, self.per_excess * _scaling(excess, above)))

    def _cost(self, q: np.ndarray) -> float:
        """Minus the log posterior density."""
        from scipy.special import log_ndtr

        rows = self.rows
        value, scaling, _ = self._values(self._eta(q))
        spread = self._spread(scaling)
        miss = (rows.loss - value) / spread
        each = (FREEDOM + 1) / 2 * np.log1p(miss**2 / FREEDOM) + np.log(spread)
        each = np.where(rows.diverged, -log_ndtr((rows.rate - value) / TOO_HIGH), each)
        result = float(each.sum() + 0.5 * (self.precision * (q - self.centre) ** 2).sum())
        return result if math.isfinite(result) else math.inf

    def _normal(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Hessian (of Gauss and Newton) and gradient at q; residuals, scaling excess and robust weights of the rows."""
        from scipy.special import log_ndtr

        rows, groups, eta = self.rows, len(self.rows.sizes), self._eta(q)
        value, scaling, _ = self._values(eta)
        slopes = {
            link: (self._values({**eta, link: eta[link] + STEP})[0] - value) / STEP for link in eta if link != "level"
        }
        slopes["level"] = np.where(rows.diverged, 0.0, 1.0)
        miss, spread = rows.loss - value, self._spread(scaling)
        robust = (FREEDOM + 1) / (FREEDOM + (miss / spread) ** 2)
        below = (rows.rate - value) / TOO_HIGH
        hazard = np.exp(-0.5 * below**2 - log_ndtr(below)) / math.sqrt(2 * math.pi)
        bend = np.maximum(hazard * (hazard + below), 1e-9) / TOO_HIGH**2
        weight = np.where(rows.diverged, bend, robust / spread**2)
        pull = np.where(rows.diverged, -hazard / TOO_HIGH, weight * miss)

        def summed(values: np.ndarray) -> np.ndarray:
            """(groups,), of (rows,)."""
            return np.bincount(rows.group, values, groups)

        maps = {link: [(self.columns[link], self.features[link])] for link in self.links}
        for link in self.rough:
            columns = np.arange(self.blocks[link].start, self.blocks[link].stop)
            maps.setdefault(link, []).append((columns, self.roots[link]))
        joined = {
            link: (np.concatenate([c for c, _ in parts]), np.hstack([m for _, m in parts]))
            for link, parts in maps.items()
        }
        hessian, gradient = np.zeros((self.size, self.size)), np.zeros(self.size)
        links = list(joined)
        for i, one in enumerate(links):
            columns, matrix = joined[one]
            gradient[columns] += matrix.T @ summed(pull * slopes[one])
            for other in links[i:]:
                columns2, matrix2 = joined[other]
                block = matrix.T @ (summed(weight * slopes[one] * slopes[other])[:, None] * matrix2)
                hessian[np.ix_(columns, columns2)] = block
                hessian[np.ix_(columns2, columns)] = block.T
        hessian[np.diag_indices(self.size)] += self.precision
        return hessian, gradient - self.precision * (q - self.centre), miss, scaling, robust

    def fit(self) -> JointFit:
        """Find the mode and the scales."""
        from scipy.linalg import cho_factor, cho_solve

        q: np.ndarray = self.centre.copy()
        damping, now, parameters = 1e-2, self._cost(q), np.diag_indices(len(self.names))
        for number in range(ROUNDS):
            hessian, gradient, miss, scaling, robust = self._normal(q)
            gain = 0.0
            for _ in range(8):
                damped = hessian.copy()
                damped[parameters] *= 1 + damping
                new = q + cho_solve(cho_factor(damped, lower=True, overwrite_a=True, check_finite=False), gradient)
                if (cost := self._cost(new)) < now + 1e-9:
                    gain, q, now, damping = now - cost, new, cost, max(damping / 5, 1e-8)
                    break
                damping *= 5
            if number >= 2 and (number % 3 == 0 or gain < 0.5):
                change, q = self._rescale(q, hessian, miss, scaling, robust)
                now = self._cost(q)
                if gain < 0.5 and change < CONVERGED:
                    break
        self.q = q
        self.root = np.linalg.cholesky(self._normal(q)[0])
        return self

    def _rescale(
        self, q: np.ndarray, hessian: np.ndarray, miss: np.ndarray, scaling: np.ndarray, robust: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """A step of EM for the scales: the largest change of their logarithms, and q with the same discrepancies."""
        from scipy.linalg import cho_factor, cho_solve, solve_triangular

        covariance = cho_solve(
            cho_factor(hessian, lower=True, check_finite=False), np.eye(self.size), check_finite=False
        )
        old = np.array([*self.scales, self.noise])
        discrepancy = dict[str, np.ndarray]()
        for link in self.rough:
            block, pivots = self.blocks[link], self.pivots[link]
            root = self.roots[link][pivots]
            discrepancy[link] = self.roots[link] @ q[block]
            inner = np.eye(len(root)) - covariance[block, block] - np.outer(q[block], q[block])
            half = solve_triangular(root, inner, lower=True, trans=1)
            inner = solve_triangular(root, half.T, lower=True, trans=1)  # precision less that of the posterior
            for k, (kernel, matrix) in enumerate(zip(self.kernels, self.covariances, strict=True)):
                if kernel.link == link:
                    count = len(np.unique(np.round(kernel.places(self.rows.sizes[pivots]), 6), axis=0))
                    power = count - self.scales[k] ** 2 * float((matrix[np.ix_(pivots, pivots)] * inner).sum())
                    variance = self.scales[k] ** 2 * max(power, 0.0)
                    self.scales[k] = math.sqrt((WEIGHT * kernel.scale**2 + variance) / (WEIGHT + count))
        near, far = (scaling <= FAR) & ~self.rows.diverged, (scaling > FAR) & ~self.rows.diverged
        used = self.size - float((self.precision * np.diag(covariance)).sum())
        free = near.sum() * max(0.2, 1 - used / max((near | far).sum(), 1))
        squares = self.rows.weight * robust * miss**2
        self.noise = math.sqrt((WEIGHT * self.noise0**2 + squares[near].sum()) / (WEIGHT + free))
        over = robust * np.maximum(miss**2 - self.noise**2 / self.rows.weight, 0) / np.maximum(scaling, FAR) ** 2
        self.per_excess = math.sqrt((SCALED * NOISE_PER_EXCESS**2 + over[far].sum()) / (SCALED + far.sum()))
        parameters = q[: len(self.names)]
        self._prepare()
        q = np.concatenate([parameters, self.centre[len(parameters) :]])
        for link, values in discrepancy.items():
            pivots = self.pivots[link]
            q[self.blocks[link]] = solve_triangular(self.roots[link][pivots], values[pivots], lower=True)
        return float(np.abs(np.log(np.array([*self.scales, self.noise]) / old)).max()), q

    @functools.cached_property
    def _drawn(self) -> np.ndarray:
        """(DRAWS, size): parameters and whitened discrepancies."""
        from scipy.linalg import solve_triangular

        normal = np.random.default_rng(0).normal(size=(self.size, DRAWS))
        return np.asarray(self.q + solve_triangular(self.root, normal, lower=True, trans=1).T)

    def discrepancies(self, link: str) -> np.ndarray:
        """(DRAWS, groups): of a link, those of the rows' sizes."""
        return np.asarray(self._drawn[:, self.blocks[link]] @ self.roots[link].T)

    def links_at(self, sizes: np.ndarray, design: Mapping[str, np.ndarray], rough: bool = True) -> dict[str, Link]:
        """Of targets, (targets, axes) and {column: (targets,)}: every link's value at the mode and in the draws.

        rough: with the discrepancies, those of targets given those of the rows."""
        rng, result = np.random.default_rng(1), {}
        for link in dict.fromkeys((*self.links, "level")):
            mode, drawn = np.zeros(len(sizes)), np.zeros((DRAWS, len(sizes)))
            if link in self.links:
                features = self._features(link, design)
                mode, drawn = features @ self.q[self.columns[link]], self._drawn[:, self.columns[link]] @ features.T
            if rough and link in self.rough:
                known, rest = self._given_rows(link, sizes)
                degrees = WEIGHT + len(np.unique(self.rows.sizes[:, :-1], axis=0))  # the scales are estimates
                normal = rng.normal(size=drawn.shape) / np.sqrt(rng.chisquare(degrees, (DRAWS, 1)) / degrees)
                mode = mode + self.q[self.blocks[link]] @ known
                drawn = drawn + self._drawn[:, self.blocks[link]] @ known + np.sqrt(rest) * normal
            result[link] = Link(mode, drawn)
        return result

    def basis(self, sizes: np.ndarray, design: Mapping[str, np.ndarray]) -> tuple[list[str], np.ndarray]:
        """(names of links, (targets, links, variables)): how the links of targets, given the rows, depend on standard
        normal variables, those of the posterior and, of each link, those of the discrepancies that the rows leave open.
        """
        from scipy.linalg import solve_triangular

        names, parts, rests = list(dict.fromkeys((*self.links, *self.rough))), [], []
        for link in names:
            by_posterior, by_rest = np.zeros((self.size, len(sizes))), np.zeros((len(sizes), 0))
            if link in self.links:
                by_posterior[self.columns[link]] = self._features(link, design).T
            if link in self.rough:
                known, _ = self._given_rows(link, sizes)
                by_posterior[self.blocks[link]] = known
                total = self._covariance(link, [kernel.between(sizes, sizes) for kernel in self.kernels])
                by_rest, _ = pivoted(total - known.T @ known, (self.noise if link == "level" else RESOLVED) ** 2 / 16)
            parts.append(solve_triangular(self.root, by_posterior, lower=True).T)
            rests.append(by_rest)
        ends = np.cumsum([self.size, *(rest.shape[1] for rest in rests)])
        result = np.zeros((len(sizes), len(names), ends[-1]))
        for number, (part, rest) in enumerate(zip(parts, rests, strict=True)):
            result[:, number, : self.size] = part
            result[:, number, ends[number] : ends[number + 1]] = rest
        return names, result

    def sources(
        self, sizes: np.ndarray, design: Mapping[str, np.ndarray], slopes: Mapping[str, float]
    ) -> VarianceParts:
        """What the variance of a function of one target's links comes from. slopes: its derivatives by links."""
        from scipy.linalg import cho_solve

        gradient, scatter = np.zeros(self.size), 0.0
        for link, slope in slopes.items():
            if link in self.links:
                gradient[self.columns[link]] += slope * self._features(link, design)[0]
            if link in self.rough:
                known, rest = self._given_rows(link, sizes)
                gradient[self.blocks[link]] += slope * known[:, 0]
                scatter += slope**2 * float(rest[0])
        step = cho_solve((self.root, True), gradient)
        by_prior = self.precision * step**2
        prior, near = float(by_prior[: len(self.names)].sum()), float(by_prior[len(self.names) :].sum())
        return VarianceParts(prior, max(float(gradient @ step) - prior - near, 0.0), scatter + near)

    def _features(self, link: str, design: Mapping[str, np.ndarray]) -> np.ndarray:
        """(targets, coefficients) of a link."""
        return np.column_stack([design[column] for column in self.links[link]])

    def _given_rows(self, link: str, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of a link's discrepancy at targets: (columns, targets), its weights of the whitened discrepancies of the
        rows, and (targets,), the variance that these leave."""
        from scipy.linalg import solve_triangular

        pivots = self.pivots[link]
        cross = self._covariance(link, [kernel.between(self.rows.sizes[pivots], sizes) for kernel in self.kernels])
        known = solve_triangular(self.roots[link][pivots], cross, lower=True)
        total = sum(scale**2 for kernel, scale in zip(self.kernels, self.scales, strict=True) if kernel.link == link)
        return known, np.maximum(total - (known**2).sum(0), 0)


class Link(NamedTuple):
    """A link's value at targets: (targets,) at the mode, (DRAWS, targets) in draws of the posterior."""

    mode: np.ndarray
    drawn: np.ndarray


class VarianceParts(NamedTuple):
    """Parts of a variance: of the prior of coefficients, of the noise of the rows, of the scatter about the law."""

    prior: float
    noise: float
    scatter: float

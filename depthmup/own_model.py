"""A model of your own, unmodified: one object that holds all that a parameterization needs to know of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args, overload

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from depthmup import bucket
from depthmup.data.batch_checks import Loss, check_callable, check_loss, checked_batch, not_finite, shapes_of, too_large
from depthmup.data.user_feed import Batches
from depthmup.declare import SIZE
from depthmup.measure import (
    CoordinateReport,
    MaximalUpdate,
    NoiseScale,
    Probe,
    coordinate_check,
    noise_scale,
    update_sizes,
)
from depthmup.measure.float32 import in_float32, widened
from depthmup.measure.hidden import with_hidden
from depthmup.measure.maximal_update import Average, over_seeds, warn_if_deep
from depthmup.measure.probe import ALL
from depthmup.names import Range, at_least_one, short, unknown
from depthmup.reading.audit import InitAudit
from depthmup.reading.forward import layer_outputs as layers_of
from depthmup.reading.frameworks import FrameworkModel, as_returned
from depthmup.reading.gain import GainAudit
from depthmup.reading.setup_warnings import setup_warnings
from depthmup.reading.source import Source
from depthmup.rules import optim, recommended
from depthmup.rules.batch_rules import NO_BASE, RuleName, Run, run_of, times
from depthmup.rules.explain import Explanation, explain, pattern
from depthmup.rules.parameterization import (
    FAMILIES,
    FamilyName,
    Name,
    Parameterization,
    ParameterizationOptions,
    parameterization,
)
from depthmup.rules.specs import (
    Layout,
    Overrides,
    ParamSpec,
    PyTree,
    group,
    is_spec,
    leaves_of,
    parameters_only,
    rescale,
    starred,
)
from depthmup.rules.wrap_optimizer import rules_of, wrapped

if TYPE_CHECKING:
    from depthmup.report.result import SweepResult
    from depthmup.tune.options import Hyperparameter, NamedOptimizers, OwnOptimizers, SweepOptions, TuneOptions

RATES = {True: 2.0**-8, False: 2.0**-10}  # of a check, by whether updates are linear in the gradient
# Which parameters a check trains together, apart from all others.
Groups = Literal["role", "path"]
GROUPS: dict[Groups, Callable[[ParamSpec], str]] = {
    "role": group,
    "path": lambda spec: f"{group(spec)} {starred(spec.path)}",
}


class SetupWarning(UserWarning):
    """Something in a model contradicts the parameterization; training goes on as it is."""


def setup(
    name: Name | Parameterization,
    factory: Callable[..., Any],
    *inputs: Any,
    width: int,
    depth: int,
    base: tuple[int, int] | None = None,
    options: Mapping[str, Any] | None = None,
    call: Callable[..., Any] | None = None,
    output: Callable[[Any], jax.Array] = as_returned,
    overrides: Overrides | None = None,
    residual: bool = True,
    layout: Layout | None = None,
    fan_in_init: bool | None = None,
    batch: int | None = None,
    steps: int | None = None,
    base_batch: int | None = None,
    base_steps: int | None = None,
    batch_rule: RuleName | None = None,
    **settings: Unpack[ParameterizationOptions],
) -> Setup:
    """A model under a parameterization: init, apply, optimizer, check, with no change to the model.

        m = dm.setup("completep", lambda w, d: GPT(width=w, depth=d), tokens, width=512, depth=24, base=(64, 4))
        variables = m.init(jax.random.key(0))
        logits = m.apply(variables, tokens)
        tx = m.optimizer("adamw", 1e-3)

    The factors of the forward pass go into the parameters (`absorb`), or into the model's argument `factors` if its
    call has one.

    Args:
      name: a name of `parameterization`, or what it returns. Branches of two weight layers or more (transformers,
        ViTs): "completep" with Adam or AdamW, "depth_ode" with Muon. Branches of one weight layer: "depth_mup". Only
        the width grows: "mup".
      factory: makes the model at a width and depth. Linen, Haiku: factory(width, depth). NNX: factory(width, depth,
        rngs). Equinox, or parameters in any pytree: factory(width, depth, key). The names rngs and key tell which.
      inputs: arguments of one call, such as a batch of examples; jax.ShapeDtypeStruct will do. Only shapes and dtypes
        of floating ones matter.
      base: (width, depth) at which hyperparameters were tuned; None: (1, 1), the absolute form of the papers.
      options: keyword arguments of the call as in training, such as {"train": True}.
      call: (model, *inputs) -> outputs, for NNX, Equinox and pytrees that are not called themselves, such as
        lambda model, x: jax.vmap(model)(x). What `eqx.nn.make_with_state` makes is called with (module,
        state) for the model, and returns (outputs, state).
      output: what the call returns -> logits, such as lambda out: out.logits.
      overrides, residual, layout: as in `infer_specs`; layout is that of the framework unless given, and in other
        pytrees the one that the forward pass shows.
      fan_in_init: True: `init` multiplies the parameters whose initial standard deviation does not scale as the
        parameterization assumes (`audit_init`) by what is missing. None: a SetupWarning names them. False: silent.
      batch, steps: of this training. base_batch, base_steps: of the training in which hyperparameters were tuned.
      batch_rule: how learning rate, decay, eps, b1 and b2 follow both (`dm.batch_rules`, docs/batch.md).
      **settings: arguments of `parameterization`, such as alpha, gamma0, beta0, base_head_dim. With a base, the
        base head size of each attention is its size at the base width, unless base_head_dim gives one for all.

    Returns:
      The model as a `Setup`, at width and depth.

    A SetupWarning tells of what has no rule or contradicts the parameterization, and what to do: a depth that is no
    number of blocks, numbers in the forward pass that change with width or depth, products without a place for the
    attention factor, factors that the model does not use, initializers that scale otherwise, under "am_mup" layers for
    which its law does not hold. Each warning of a `Setup` is given once, however many shapes it is asked for.

    Raises SpecError if the roles of parameters are unclear, ForwardError if a factor has no place among the parameters
    or the readout is stored the other way round, TypeError for a model of an unknown framework, ValueError for an
    unknown setting.
    """
    _check_arguments(inputs, settings)
    _check_kinds(factory, options, call, output, overrides, layout)
    p = _parameterization(name, base, settings)
    run = run_of(batch, steps, base_batch, base_steps, batch_rule)
    source = Source(p, factory, inputs, options or {}, call, output, overrides or {}, residual, layout, fan_in_init)
    try:
        if isinstance(name, str) and p.has_base and "base_head_dim" not in settings and "attention" in p.kinds:
            source = source.with_base_heads()
        m = _at(source, width, depth, run)
        messages = setup_warnings(source, width, depth)
    except jax.errors.UnexpectedTracerError as error:
        raise TypeError(
            "the model keeps an array that its factory computed in a closure or a static field, where JAX sees none: "
            "compute it with NumPy, or inside jax.ensure_compile_time_eval()"
        ) from error
    for message in messages:
        warnings.warn(message, SetupWarning, stacklevel=2)
    return m


def _parameterization(
    name: Name | Parameterization, base: tuple[int, int] | None, settings: Mapping[str, Any]
) -> Parameterization:
    if isinstance(name, Parameterization):
        if base or settings:
            raise TypeError("the base and the settings are part of the parameterization that you give")
        return name
    if not (base is None or (isinstance(base, Sequence) and len(base) == 2)):
        raise TypeError(f"base must be (width, depth), such as base=(64, 4), got {base!r}")
    base_width, base_depth = base or (1, 1)
    return parameterization(name, base_width=base_width, base_depth=base_depth, **settings)


def _at(source: Source, width: int, depth: int, run: Run | None = None) -> Setup:
    """The model at a shape."""
    for name, size in (("width", width), ("depth", depth)):
        at_least_one(name, size)
        Range(**SIZE).check(name, size)
    p, model, specs = source.p, source.model(width, depth), source.specs(width, depth)
    correction = source.audit(width, depth) if source.fan_in_init else None
    if model.factors is None:
        return Setup(p.in_form("absorbed"), specs, model, correction, source, run)
    factors = p.forward_factors(width=width, depth=depth, head_dim=source.head_dim(width, depth))
    model = dataclasses.replace(model, factors=factors)
    return Setup(p, specs, model, correction, source, run)


def _check_arguments(inputs: Sequence[Any], settings: Mapping[str, Any]) -> None:
    """Raises ValueError for inputs without arrays, and for an argument that `setup` and `parameterization` lack."""
    known = inspect.signature(parameterization).parameters.keys() - {"name", "base_width", "base_depth"}
    for name in settings:
        if name not in known:
            raise unknown("argument of setup", name, known | inspect.signature(setup).parameters.keys() - {"settings"})
    if inputs and not any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(inputs)):
        raise ValueError(f"inputs must be those of a call, arrays or jax.ShapeDtypeStruct, got {short(inputs)}")


def _check_kinds(factory: Any, options: Any, call: Any, output: Any, overrides: Any, layout: Any) -> None:
    """Raises ValueError for arguments of `setup` that are of another kind than its types say."""
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ValueError(
            f"factory must make the model, such as lambda width, depth: Net(width, depth), got {short(factory)}"
        )
    for name, value, right in (
        ("call must be a function (model, *inputs) -> outputs", call, call is None or callable(call)),
        ("output must be a function of what the call returns", output, callable(output)),
        ("options must be a dict of keyword arguments", options, options is None or isinstance(options, Mapping)),
        ("overrides must be a dict {GLOB: ROLE}", overrides, overrides is None or isinstance(overrides, Mapping)),
    ):
        if not right:
            raise ValueError(f"{name}, got {short(value)}")
    if layout not in (None, *get_args(Layout)):
        raise unknown("layout", layout, get_args(Layout))


def _main(families: PyTree) -> FamilyName:
    """The family that stands for an optimizer of several."""
    return max(jax.tree.leaves(families), key=lambda name: FAMILIES[name].gradient)


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """What `setup` returns: a model at one width and depth under a parameterization.

    specs: of its parameters, with the places of absorbed factors. correction: of the init, with fan_in_init=True.
    source: what `setup` was given. A setup can be pickled if that can. run: batch size and steps beside the base's.
    """

    parameterization: Parameterization
    specs: PyTree
    model: FrameworkModel
    correction: InitAudit | None
    source: Source
    run: Run | None = None

    def __repr__(self) -> str:
        p, count = self.parameterization, len(leaves_of(self.specs))
        return (
            f"<Setup: {p.name}, width {self.width}, depth {self.depth}, base ({p.base_width}, {p.base_depth}), {count} "
            "arrays of parameters; explain() shows them>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _at, (self.source, self.width, self.depth, self.run)

    @property
    def width(self) -> int:
        """The model's width."""
        return leaves_of(self.specs)[0].width

    @property
    def depth(self) -> int:
        """The model's depth."""
        return leaves_of(self.specs)[0].depth

    def at(self, width: int, depth: int, batch: int | None = None, steps: int | None = None) -> Setup:
        """The same model at another width and depth, with the same base.

        Args:
          width, depth: in the units of the factory.
          batch, steps: examples of a step and number of steps of this training; None for the same.

        Returns:
          A `Setup`.

        Raises ValueError for batch or steps of a setup without `base_batch`.
        """
        if self.run is None and (batch or steps):
            raise ValueError(NO_BASE)
        return _at(self.source, width, depth, self.run and self.run.at(batch, steps))

    def under(self, name: Name | Parameterization) -> Setup:
        """The same model and base under another parameterization, with its defaults.

        Args:
          name: as in `setup`.

        Returns:
          A `Setup` at the same width and depth.

        Raises ValueError for an unknown name.
        """
        p, source = self.source.p, self.source
        if isinstance(name, Parameterization):
            source = source.under(name)
        else:
            named = parameterization(
                name,
                base_width=p.base_width,
                base_depth=p.base_depth,
                base_head_dim=p.base_head_dim,
                gamma0=p.gamma0,
                beta0=p.beta0,
                blocks=p.blocks,
            )
            source = source.under(named)
            if "attention" in named.kinds and "attention" not in p.kinds and p.base_head_dim == 1 and p.has_base:
                source = source.with_base_heads()  # which `setup` leaves out for `p`
        return _at(source, self.width, self.depth, self.run)

    def init(self, key: Any) -> Any:
        """Initial parameters: what the framework's own init gives, rescaled.

        Args:
          key: a PRNG key; for Linen also a dict of keys.

        Returns:
          Linen's variables, an NNX or Equinox model, Haiku's params or (params, state).
        """
        params, state = self.fresh(key)
        return self.model.join(params, state)

    def fresh(self, key: Any) -> tuple[PyTree, PyTree]:
        """The same as `init` in two trees, in a function that can be jitted.

        Args:
          key: a PRNG key; for Linen also a dict of keys.

        Returns:
          (rescaled parameters, the model's other arrays).
        """
        return self._rescaled(*self.model.init(key))

    def _rescaled(self, params: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
        if self.correction is not None:
            params = self.correction.correct(params)
        return rescale(self.parameterization, self.specs, params), state

    def apply(self, model: Any, *args: Any, **options: Any) -> Any:
        """The model's own call.

        Args:
          model: what `init` returned, or training made of it.
          args, options: as in its framework (rngs=, mutable=, ...).

        Returns:
          What the model's call returns.
        """
        return self.model.apply(model, *args, **options)

    def optimizer(
        self,
        name: optim.OptimizerName,
        learning_rate: optax.ScalarOrSchedule,
        *,
        momentum: float | jax.Array | None = None,
        nesterov: bool | None = None,
        b1: float | jax.Array | None = None,
        b2: float | jax.Array | None = None,
        eps: float | jax.Array | None = None,
        weight_decay: optax.ScalarOrSchedule = 0.0,
        decay: optim.Decay = "uncoupled",
        mask: PyTree | Callable[[PyTree], PyTree] | None = None,
    ) -> optax.GradientTransformation:
        """`dm.optimizer` of this model's parameters, in whatever holds them: {"params": parameters}, arrays without
        their boxes, plain, frozen or flat dicts, what Orbax restores without a target. Or of some of them, such as
        NNX's of one type (nnx.LoRAParam), or an Equinox model's without those that are frozen.

        Args:
          name, learning_rate, momentum, nesterov, b1, b2, eps, weight_decay, decay, mask: of `dm.optimizer`; the
            learning rate is the base's, a number or a schedule of Optax. optax.inject_hyperparams(m.optimizer,
            static_args="mask") makes them parts of the state.

        Returns:
          The transformation; its updates are added to the stored parameters by `optax.apply_updates`.

        A SetupWarning tells of a depth rule of another optimizer, and of decay that follows the learning rate.
        Raises what `dm.optimizer` raises.
        """
        self._warn_of_rules(optim.families_of(name, self.specs), decay == "coupled")
        numbers = dict(momentum=momentum, nesterov=nesterov, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)
        options = {"learning_rate": learning_rate, **numbers}
        if self.run:
            options = self.run.scaled(name, options)
        return optim.of_parameters(
            self.specs,
            lambda specs: optim.optimizer(self.parameterization, specs, name, **options, decay=decay, mask=mask),
            some=True,
        )

    def wrap(self, tx: optax.GradientTransformation, *, family: PyTree | None = None) -> optax.GradientTransformation:
        """`dm.wrap`: any Optax transformation, by what it does with each parameter's gradient; with the SetupWarning of
        `optimizer` of a depth rule of another optimizer.

        With a base batch size the learning rate follows its rule; what is inside `tx` does not: `m.run.scaled` has the
        values of b1, b2, eps and decay.

        Args:
          tx: the transformation, with the base's learning rate inside.
          family: of `dm.wrap`.

        Returns:
          The transformation with this model's factors.

        Raises ValueError where no rule fits what `tx` does, as `dm.wrap`.
        """
        rules = rules_of(self.specs, tx, family)
        self._warn_of_rules(list(rules.families.values()), False)
        whole = wrapped(self.parameterization, self.specs, rules, some=True)
        factor = self.run.factors(_main(list(rules.families.values())))["learning_rate"] if self.run else 1.0
        return whole if factor == 1 else optax.chain(whole, optax.scale(factor))

    def clip_by_global_norm(self, norm: float) -> optax.GradientTransformation:
        """`dm.clip_by_global_norm`: the largest norm of the gradient, which a sweep's `clip=` tunes.

        It goes in front, optax.chain(m.clip_by_global_norm(1.0), m.optimizer("adamw", 1e-3)). Take a threshold above
        the norms of the base's ordinary steps, and keep it: under "depth_mup" the norm at the start rose by a fifth
        from depth 4 to 64, and halved from width 64 to 1,024, where it clips less (docs/training.md has more).

        Args:
          norm: above 0, of the gradient in the weights, not in what is stored.

        Returns:
          The transformation.

        Raises ValueError for a norm that is not positive.
        """
        return optim.of_parameters(
            self.specs, lambda specs: optim.clip_by_global_norm(self.parameterization, specs, norm), some=True
        )

    def audit_gain(self) -> GainAudit:
        """Whether the model's own init starts with He's variance for each activation: `dm.audit_gain` at the base width
        and a small depth.

        Returns:
          A `GainAudit`; print it.
        """
        return self.source.gains(*self.source.traced_shape(self.width, self.depth))

    def _warn_of_rules(self, families: PyTree, coupled: bool) -> None:
        p, leaves = self.parameterization, leaves_of(self.specs)
        family = _main(families)
        branch = next((spec.path for spec in leaves if spec.in_branch), "")
        hidden = next((spec.path for spec in leaves if spec.role == "hidden"), "")
        if branch and p.alpha is not None and p.lr_depth is not None and not p.arithmetic_mean:
            wanted = FAMILIES[family].depth(p.alpha)
            if p.lr_depth != wanted:
                self._warn(
                    f"lr_depth={p.lr_depth:g} makes the learning rate of {branch} and all in branches go as "
                    f"depth^{p.lr_depth:g}; with branches of depth^-{p.alpha:g} the family {family!r} needs "
                    f"depth^{wanted:g}, the default: leave lr_depth out"
                )
        if coupled and hidden:
            self._warn(
                f"decay='coupled' makes the weight decay of {hidden} and others follow its learning rate, which "
                "changes with width and depth: the default decay='uncoupled' keeps learning rate x decay"
            )

    def _warn(self, message: str) -> None:
        if message not in self.source.warned:
            self.source.warned.add(message)
            warnings.warn(message, SetupWarning, stacklevel=4)

    def explain(
        self, model: Any = None, optimizer: optim.OptimizerName = "adamw", learning_rate: Any = 1.0, **options: Any
    ) -> Explanation:
        """`dm.explain`; its notes are the parameters that are stored times a factor of the forward pass, and which
        parameterization to take with this optimizer.

        Args:
          model: what `init` returned, whose standard deviations the table shows; None: those of its initializers.
          optimizer, learning_rate, options: of `dm.explain`: weight_decay, mask, eps, decay, step.

        Returns:
          The table as an `Explanation`; print it.

        Raises ValueError for an unknown optimizer or option.
        """
        if model is None:
            options = {"stds": self._init_stds(), **options}
        else:
            options = {"params": parameters_only(self.model.split(model)[0]), **options}
        family = optim.family_of(optimizer)
        places = [*self._places(), recommended.line(optimizer, family)]
        if self.run:
            places = [self.run.words(optimizer), *places]
            base = {"weight_decay": 1.0, "eps": optim.DEFAULTS["eps"], **options, "learning_rate": learning_rate}
            factors = self.run.factors(family)
            options |= {name: times(factor, base[name]) for name, factor in factors.items()}
            learning_rate = options.pop("learning_rate")
        table = explain(self.parameterization, self.specs, optimizer, learning_rate, **options)
        return dataclasses.replace(table, notes=[*table.notes, *places])

    def _init_stds(self) -> dict[str, float | None]:
        """{path: standard deviation of what `init` gives}; None of a parameter of which a part is stored otherwise."""
        stds = self.source.initializers.stds(self.width, self.depth)
        correction = self.correction.factors if self.correction else {}
        result: dict[str, float | None] = {}
        for spec in leaves_of(self.specs):
            p = self.parameterization
            std, factor = stds[spec.path].value, spec.factors(p, p.init_family).init
            scale = math.sqrt(float(np.mean(np.square(factor))))
            result[spec.path] = None if std is None else std * correction.get(spec.path, 1.0) * scale
        return result

    def _places(self) -> list[str]:
        """A line for each kind of factor: its value and where it is."""
        if self.model.factors is not None:
            return [f"the model takes its factors: {self.model.factors}"]
        p = self.parameterization.in_form("mup")
        places: dict[str, dict[tuple[str, str, str], list[str]]] = {}
        for spec in leaves_of(self.specs):
            for kind, head_dim, axis, ranges in spec.absorbs or ():
                factors = p.forward_factors(width=spec.width, depth=spec.depth, head_dim=head_dim or None)
                value = getattr(factors, kind) * (head_dim**0.5 if kind == "attention" else 1)
                part = f" [{', '.join(f'{a}:{b}' for a, b in ranges)} of axis {axis}]" if ranges else ""
                alike = places.setdefault(f"{kind} factor {value:.4g}", {})
                added = f"{spec.offset:g} + " if spec.offset else ""
                alike.setdefault((starred(spec.path), added, part), []).append(spec.path)
        return [
            f"{kind} inside {', '.join(added + pattern(paths) + part for (_, added, part), paths in alike.items())}"
            for kind, alike in places.items()
        ]

    def check(
        self,
        loss: Callable[[jax.Array, PyTree], jax.Array],
        batch: Sequence[Any],
        *,
        optimizer: optim.OptimizerName | Callable[[Setup], optax.GradientTransformation] = "adam",
        learning_rate: float | None = None,
        widths: Sequence[int] | None = None,
        depths: Sequence[int] | None = None,
        steps: Sequence[int] = (1, 4),
        seeds: int = 4,
        max_seeds: int = 32,
        groups: Groups = "role",
        workdir: str | Path | None = None,
        progress: Callable[[str], None] = lambda message: print(message, file=sys.stderr, flush=True),
        **options: Any,
    ) -> CoordinateReport:
        """Does training move the features of this model alike at every width and depth? `coordinate_check` of it.

        Args:
          loss: (logits, targets) -> scalar.
          batch: (*inputs, targets).
          optimizer: a name of `dm.optimizer`, or for another transformation (setup -> transformation), such as
            lambda m: m.wrap(optax.lion(1e-3)).
          learning_rate: at the base shape; small, since saturation hides slopes.
          widths, depths: by default 1, 2 and 4 times the base width, at the base depth; and 1, 2, 4 and 8 times the
            base depth, at the base width. In the absolute form this shape stands for the base.
          groups: what is trained alone: "role", all parameters that scale alike, or "path", each parameter of a block.
          workdir: where trainings are kept, so that a check that was interrupted goes on; None: nowhere.
          progress: is told about how long it takes, and what is trained; by default on the standard error output.
          steps, seeds, max_seeds, options: of `coordinate_check`.

        Returns:
          A `CoordinateReport`: its `verdict`, whether it is `ok`, all slopes and their intervals.

        The features are what the readout is applied to. All is computed in float32, also what a model computes in
        bfloat16, which cannot see changes as small. Raises ValueError for a batch with labels that are no classes, for
        a loss that is not finite or does not depend on the logits, and what `coordinate_check` raises.
        """
        p = self.parameterization
        width, depth = p.base_or(self.width, self.depth)
        if workdir is not None:
            bucket.check_path(workdir)
        self._check_batch(loss, checked_batch(batch))
        sizes = {"width": width, "depth": depth, "title": p.name, **options}
        widths = [k * width for k in (1, 2, 4)] if widths is None else widths
        depths = [k * depth for k in (1, 2, 4, 8)] if depths is None else depths

        @functools.cache
        def probe_at(width: int, depth: int) -> Probe:
            return self.at(width, depth).probe(loss, batch, optimizer, learning_rate, groups)

        with contextlib.ExitStack() as stack:
            kept = None
            if workdir is not None:
                from depthmup.trials.kept import Kept, of_probe  # the engine is loaded when it is needed

                shapes = {(w, sizes["depth"]) for w in widths} | {(sizes["width"], d) for d in depths}
                hashes = {f"width {w} depth {d}": of_probe(probe_at(w, d), self.at(w, d).fresh) for w, d in shapes}
                kept = stack.enter_context(contextlib.closing(Kept(workdir, batch, hashes)))
            return coordinate_check(
                probe_at,
                widths=widths,
                depths=depths,
                **sizes,
                steps=steps,
                seeds=seeds,
                max_seeds=max_seeds,
                progress=progress,
                kept=kept,
            )

    def _check_batch(self, loss: Callable[[jax.Array, PyTree], jax.Array], batch: tuple[Any, ...]) -> None:
        """Raises ValueError for a batch (*inputs, targets) that has no loss, or labels that are no classes."""
        model, (params, state) = self.model, self.model.shapes
        logits = jax.eval_shape(lambda *of: model.run(*of)[0], params, state, *shapes_of(batch[:-1]))
        if problem := too_large(batch):
            raise ValueError(problem)
        check_loss(loss, logits, batch[-1])
        problem = not_finite(batch[:-1])
        if problem and not jnp.isfinite(model.run(*self.fresh(jax.random.key(0)), *batch[:-1])[0]).all():
            raise ValueError(f"{problem}, and the logits are not finite")

    @overload
    def sweep(
        self,
        loss: Loss,
        batches: Batches,
        *,
        steps: int | Sequence[int],
        optimizer: NamedOptimizers = "adamw",
        learning_rates: Sequence[float] | float | None = None,
        widths: Sequence[int] | None = None,
        depths: Sequence[int] | None = None,
        against: Sequence[Name] = (),
        workdir: str | Path | None = None,
        **options: Unpack[SweepOptions],
    ) -> SweepResult: ...
    @overload  # an optimizer of one's own has hyperparameters of any name
    def sweep(
        self, loss: Loss, batches: Batches, *, steps: int | Sequence[int], optimizer: OwnOptimizers, **options: Any
    ) -> SweepResult: ...
    def sweep(
        self,
        loss: Loss,
        batches: Batches,
        *,
        steps: int | Sequence[int],
        optimizer: Any = "adamw",
        learning_rates: Sequence[float] | float | None = None,
        widths: Sequence[int] | None = None,
        depths: Sequence[int] | None = None,
        against: Sequence[Name] = (),
        workdir: str | Path | None = None,
        **options: Any,
    ) -> SweepResult:
        """Train this model at several widths and depths with a grid of learning rates: does the best one transfer?

            result = m.sweep(loss, batches, steps=500, widths=(64, 128, 256), depths=(4, 8, 16), workdir="runs/gpt")
            print(result)  # verdicts, and the learning rate to use at larger sizes, if one is known to be right
            tx = m.optimizer("adamw", result.learning_rate)  # the best at the base

        The depths are compared at the base width, also where all widths are smaller (a UserWarning says so, depths=()
        leaves them out), the widths at the base depth. All trainings of a shape are one compiled program. With a
        workdir a sweep that was interrupted goes on from there, bit for bit.

        Args:
          loss: (logits, targets) -> scalar, the mean over the batch.
          batches: arrays (*inputs, targets) with batch_size=; or a pure function step -> (*inputs, targets), which runs
            on the device if JAX can trace it; or an iterable of batches, of which `steps` are read and kept; or a
            function without arguments -> an iterator, made anew where it is needed.
          steps: number of steps of each training; or several, the base first.
          optimizer: a name of `dm.optimizer`, several of them, or a function (setup, **hyperparameters) -> a
            transformation with learning rate 1, such as lambda m: m.wrap(optax.lion(1.0)); or {name: such a function}.
          learning_rates: at the base shape: five or more; or one, around which each shape is searched; None: the
            usual grid, two an octave.
          widths, depths: by default 1, 2 and 4 times the base.
          against: names of parameterizations to train besides this one, such as ("sp", "mup").
          workdir: of the rows and of report.html; None: nothing is stored.
          **options: hyperparameters of the optimizer, each a number, or a tuple as a further axis (weight_decay=(0.0,
            0.1)); and
            evaluate: held-out batches, arrays or an iterable; the sweep is then judged by their loss;
            seeds (3), until ("planned", or "decided": more seeds and rates where verdicts need them), max_seeds (24);
            judge_by ("last_loss": of the last tenth of the steps; "mean_loss", "validation_loss");
            margin: what a value may cost that transfers, in octaves (1.0) or percent of the loss ("0.5%");
            chance: the loss of a model that has learned nothing; None: that of the first batch;
            schedule ("constant", "linear", "cosine", "cosine_to_tenth", "wsd": constant, then down to 0 in the last
            fifth), warmup (steps), clip (largest norm of the gradient, as of `clip_by_global_norm`);
            batch_size: several are an axis, as several steps are, the base first; fixed ("examples", or "steps");
            sizes: [(width, depth, batch_size, steps), ...], which differ from the base in everything at once, and are
            compared with it along the axis "compute";
            measure: ("noise_scale",): the gradient noise scale, `measure_points` (5) times in each training;
            own_outputs: True: the loss takes what the model returns, not its logits;
            max_trials (20,000): how many trials `until` may add; the plan may have any number;
            adaptive, per_octave (2), at_once, devices_per_trial, wrapper ("pmap", "jit"), shard ((i, n): part i of n,
            of the plan alone), progress (True);
            executor: any concurrent.futures.Executor, such as client.get_executor() of a Dask client, whose workers
            train (docs/sweeps.md); retries (2): how often a group is submitted again whose worker was lost.

        Returns:
          A `SweepResult`: verdicts, `learning_rate` at the base, `rows` (one for each training).

        Raises ValueError for arguments that cannot be trained, before anything is compiled, WorkdirError for a workdir
        of another model, other data or settings, Stopped when interrupted, and WorkersLost of an executor.
        """
        from depthmup.tune.model_sweep import sweep_model  # the engine is loaded when it is needed

        return sweep_model(
            self,
            loss,
            batches,
            steps=steps,
            optimizer=optimizer,
            learning_rates=learning_rates,
            widths=widths,
            depths=depths,
            against=against,
            workdir=workdir,
            **options,
        )

    @overload
    def tune(
        self,
        loss: Loss,
        batches: Batches,
        *,
        steps: int,
        target: Mapping[str, int] | None = None,
        budget: str | float | None = None,
        tolerance: float | None = None,
        learning_rate: float | SweepResult | None = None,
        hyperparameter: Hyperparameter = "learning_rate",
        optimizer: NamedOptimizers = "adamw",
        **options: Unpack[TuneOptions],
    ) -> SweepResult: ...
    @overload
    def tune(
        self, loss: Loss, batches: Batches, *, steps: int, optimizer: OwnOptimizers, **options: Any
    ) -> SweepResult: ...
    def tune(
        self,
        loss: Loss,
        batches: Batches,
        *,
        steps: int,
        target: Mapping[str, int] | None = None,
        budget: str | float | None = None,
        tolerance: float | None = None,
        learning_rate: float | SweepResult | None = None,
        hyperparameter: Hyperparameter = "learning_rate",
        **options: Any,
    ) -> SweepResult:
        """The best learning rate at the base shape alone; with a target, that of a large run, from small trainings.

            result = m.tune(loss, batches, steps=500, target=dict(width=2048, depth=48, steps=200_000), budget="30min")
            print(result)  # the rate of the large run, its interval, what it may cost
            tx = m.at(2048, 48).optimizer("adamw", **result.hyperparameters)

        Without a target it searches at the base, and says what it costs to be sure that the rate transfers.

        With a target it trains those sizes and rates that are expected to bring the cost of the target's rate down most
        for each second: of a lattice of sizes, the base's times 1, 2, 4, ... below the target's. It begins with a few
        cheap trainings, and fits one law to all rows of the workdir after each stage (`fit.scaling_law`). A line for
        each stage says what is known, what is trained next and what that is expected to bring. With a workdir a call
        that was interrupted goes on from there with the same choices (choices.jsonl), also with more budget.

        Args:
          loss, batches: of `sweep`.
          steps: of the base. With a target that has other steps or another batch size than the base, batches must be
            such that these may differ (`sweep`).
          target: dict(width=, depth=, batch_size=, steps=); those that are left out are the base's.
          budget: seconds of training in all, of every call for this target in the workdir: "30min", "2h", "90s" or a
            number; None: no limit. It is time by the clock, also where an executor's workers train.
          tolerance: stop where the cost that is exceeded in 2.5% of the cases is below this share of the loss; .01, 1%,
            unless it is given.
          learning_rate: a first guess.
          hyperparameter: with a target, another number of the optimizer may be tuned, such as "weight_decay", whose
            first guess is an option (weight_decay=.1). Then learning_rate is that of every training: a number, or the
            result of `tune` to the same target, whose law says the rate at each size. Averages (b1, b2, momentum) have
            a law of 1 - b2, one over a number of steps.
          options: those of `sweep`, and with a target those that say what a training is and how it is judged.

        Returns:
          A `SweepResult`: without a target `learning_rate` is the base's, and `hyperparameters` are {}; with one they
          are the target's ({} where too little could be trained).

        The result of a target has `law` and `prediction` (None in that case). Raises ValueError
        for a target below the base or equal to it, for one with no size between, for a budget below one training, and
        where every training diverges; and what `sweep` raises.
        """
        if target is not None:
            from depthmup.tune.target import TOLERANCE, tune_target

            return tune_target(
                self,
                loss,
                batches,
                steps=steps,
                target=target,
                budget=budget,
                tolerance=TOLERANCE if tolerance is None else tolerance,
                learning_rate=learning_rate,
                hyperparameter=hyperparameter,
                **options,
            )
        if budget is not None or tolerance is not None or hyperparameter != "learning_rate":
            names = "budget=, tolerance= and hyperparameter="
            raise ValueError(f"{names} are for a target: give target=, the sizes of the large run")
        if hasattr(learning_rate, "law"):
            raise ValueError("learning_rate= must be a number, a first guess, without target=")
        from depthmup.tune.model_sweep import tune_base

        return tune_base(self, loss, batches, steps=steps, learning_rate=learning_rate, **options)

    def maximal_update(
        self,
        loss: Callable[[jax.Array, PyTree], jax.Array],
        batch: Sequence[Any],
        *,
        optimizer: optim.OptimizerName | Callable[[Setup], optax.GradientTransformation] = "sgd",
        probe: Sequence[Any] | None = None,
        layers: Sequence[int] | None = None,
        average: Average = "arithmetic",
        seeds: int = 8,
    ) -> MaximalUpdate:
        """The learning rate whose first step changes the layers of this model by 1 on average, Sbar = 1 (AM-muP):
        `dm.maximal_update` of it, whose layers are found in the forward pass.

        They are the residual stream, before the first block and after each one; in a network without residual branches
        each layer's W h + bias, but for the readout's.

        Args:
          loss: (logits, targets) -> scalar.
          batch: (*inputs, targets), of the step. probe: those on which the change is measured; None: the batch.
          optimizer: a name of `dm.optimizer`, or for another transformation (setup -> transformation), of learning rate
            1, such as lambda m: m.wrap(optax.lion(1.0)).
          layers, average, seeds: of `dm.maximal_update`.

        Returns:
          A `MaximalUpdate`, whose `learning_rate` is a value at the base.

        The learning rate is one of `m.optimizer`, which has the parameterization's factors: its ratio at two shapes
        (`m.at`) says by how much the one tuned at the first must change at the second. Raises ForwardError if layers
        are not found, and what `dm.maximal_update` raises.
        """
        check_callable(loss)
        batch, probe = checked_batch(batch), checked_batch(batch if probe is None else probe)
        tx = self.optimizer(optimizer, 1.0) if isinstance(optimizer, str) else optimizer(self)
        model, leaves = self.model, leaves_of(self.specs)
        blocks = self.parameterization.count_blocks(leaves[0].depth)
        params, _ = model.shapes

        def apply(params: PyTree, state: PyTree, *inputs: Any) -> jax.Array:
            return model.run(params, state, *inputs)[0]

        outputs = layers_of(apply, params, [model.random_state], probe[:-1], blocks)

        @jax.jit
        def of_start(params: PyTree, state: PyTree, batch: Sequence[Any], probe: Sequence[Any]) -> jax.Array:
            grads = jax.grad(lambda params: loss(apply(params, state, *batch[:-1]), batch[-1]))(params)
            direction, _ = tx.update(grads, tx.init(params), params)
            return update_sizes(lambda params: outputs(params, state, *probe[:-1]), params, direction)

        def sizes(seed: np.uint32) -> jax.Array:
            return of_start(*self._rescaled(*model.init_eagerly(jax.random.key(seed))), batch, probe)

        update = over_seeds(sizes, seeds, layers, average)
        widths = [spec.fan_out for spec in leaves if spec.role == "input"] or [leaves[0].width]
        warn_if_deep(update.per_seed.shape[1] - 1, min(widths))
        return update

    def noise_scale(
        self, loss: Callable[[jax.Array, PyTree], jax.Array], batch: Sequence[Any], model: Any = None, part: int = 1
    ) -> NoiseScale:
        """The gradient noise scale of this model: the batch size up to which a larger batch saves steps.

        It grows during training: give the model as it is somewhere in the middle, and a batch of some times the noise
        scale, for a narrow interval.

        Args:
          loss: (logits, targets) -> scalar, the mean over examples.
          batch: (*inputs, targets), of which all gradients of parts are compared. part: examples of a part.
          model: what `init` returned, or training made of it; None: a new init.

        Returns:
          A `NoiseScale`, in examples, with its interval.

        Raises ValueError for a batch of fewer than 4 parts, and for a loss that is no function.
        """
        check_callable(loss)
        if model is None:
            params, state = self.fresh(jax.random.key(0))
        else:
            params, state = self.model.split(model)

        def loss_of(params: PyTree, part: Sequence[Any]) -> jax.Array:
            return loss(self.model.run(params, state, *part[:-1])[0], part[-1])

        return noise_scale(lambda part: jax.grad(loss_of)(params, part), checked_batch(batch), part)

    def probe(
        self,
        loss: Callable[[jax.Array, PyTree], jax.Array],
        batch: Sequence[Any],
        optimizer: optim.OptimizerName | Callable[[Setup], optax.GradientTransformation],
        learning_rate: float | None = None,
        groups: Groups = "role",
    ) -> Probe:
        """This model as `coordinate_check` trains it.

        Args:
          loss, batch, optimizer, learning_rate, groups: of `check`.

        Returns:
          A `Probe`.

        Raises ValueError for an unknown group or optimizer.
        """
        if groups not in GROUPS:
            raise unknown("groups", groups, GROUPS)
        if callable(optimizer):
            tx = optimizer(self)
            if not (hasattr(tx, "init") and hasattr(tx, "update")):
                raise ValueError(f"optimizer must make an Optax transformation, it makes {short(tx)}")
        else:
            linear = FAMILIES[optim.family_of(optimizer)].linear
            tx = self.optimizer(optimizer, RATES[linear] if learning_rate is None else learning_rate)
        model, names = self.model, jax.tree.map(GROUPS[groups], self.specs, is_leaf=is_spec)
        inside = self._output_before_readout()

        def init(hyper: Any) -> Any:
            params, state = widened(self._rescaled(*model.init_eagerly(jax.random.key(hyper["seed"]))))
            return params, state, tx.init(params)

        @jax.jit  # a step is traced several times, and this once
        def seen(params: PyTree, state: PyTree, batch: Sequence[Any]) -> Any:
            """(gradients, {quantity: its value})"""
            *inputs, targets = batch

            look = with_hidden(lambda params, *inputs: model.run(params, state, *inputs)[0], params, *inputs)

            def loss_of(params: PyTree) -> tuple[jax.Array, dict[str, jax.Array]]:
                values = look(params)
                value = loss(values["logits"], targets)
                return value, {**values, "loss": value}

            (_, values), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
            return grads, {**values, "hidden": values["hidden"] / inside}

        wide = functools.cache(lambda: in_float32(seen, *model.shapes, batch))

        def step(carry: Any, batch: Sequence[Any], hyper: Any) -> Any:
            params, state, kept = carry
            grads, values = wide()(params, state, batch)
            updates, kept = tx.update(grads, kept, params)
            updates = jax.tree.map(lambda update, trains: update * trains, updates, hyper["trains"])
            return (optax.apply_updates(params, updates), state, kept), values

        def hyper(name: str, seed: int) -> dict[str, Any]:
            trains = jax.tree.map(lambda group: np.float32(name in (ALL, group)), names)
            return {"seed": np.uint32(seed), "trains": trains}

        return Probe(init, step, None, hyper, tuple(dict.fromkeys(jax.tree.leaves(names))), batch)

    def _output_before_readout(self) -> float:
        """The output factor where it is stored before the readout, as in the last norm of tied embeddings; else 1."""
        for spec in leaves_of(self.specs):
            if spec.role not in ("readout", "scalar") and any(kind == "output" for kind, *_ in spec.absorbs or ()):
                p = self.parameterization.in_form("mup")
                return p.forward_factors(width=spec.width, depth=spec.depth).output
        return 1.0

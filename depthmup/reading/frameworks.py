"""One way to make and to call a model of Linen, NNX, Haiku, Equinox, or any pytree of arrays.

Each framework keeps a model's numbers in its own way; here they are (params, state): a pytree of the parameters, and
one of the other arrays (batch statistics, random keys, buffers).
"""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.core import DenyList

from depthmup.reading.init_std import InitProgram, evaluate
from depthmup.rules.parameterization import ForwardFactors
from depthmup.rules.specs import Layout, PyTree, is_parameter, named, parameters_only

KEY = 0  # of random numbers whose values do not matter
# Options of a call by the names that libraries give them, and their values in evaluation.
EVALUATION = {
    "train": False,
    "training": False,
    "is_training": False,
    "deterministic": True,
    "inference": True,
    "use_running_average": True,
}


@dataclasses.dataclass(frozen=True, eq=False)
class FrameworkModel(abc.ABC):
    """A model at one width and depth; a subclass for each framework.

    make: key -> the object that the user's factory returns.
    inputs, options: arguments and keyword arguments of a call, as in training.
    call: (model, *inputs) -> outputs, for a model that is not called itself. output: outputs -> logits.
    factors: the forward factors of a model whose call takes them. shape: (width, depth).

    The argument `model` of the methods is the user's form of the parameters and the state: Linen's variables, an NNX
    module, Haiku's params, a pytree. `join` makes it, `split` takes it apart.
    """

    make: Callable[[Any], Any]
    inputs: tuple[Any, ...]
    options: Mapping[str, Any]
    call: Callable[..., Any] | None
    output: Callable[[Any], jax.Array]
    factors: ForwardFactors | None = None
    training: bool = True
    shape: tuple[int, int] = (0, 0)

    layout: ClassVar[Layout | None] = None  # of infer_specs, where the framework has one
    init_calls: ClassVar[bool] = False  # whether the framework's init runs the forward pass

    def init(self, key: Any) -> tuple[PyTree, PyTree]:
        """(params, state) by the model's own initializers."""
        return self.split(self.make(key))

    def run(self, params: PyTree, state: PyTree, *inputs: Any, key: Any = None) -> tuple[jax.Array, PyTree]:
        """(logits, state after the call). key: of dropout and other random numbers of this call, in a framework whose
        models have no random state of their own; None: one whose values do not matter.

        An axis name that nothing binds, as that of BatchNorm(axis_name="batch"), is one of size 1: one device."""
        with self.saying_where():
            return _with_axes(lambda: self._run(params, state, *inputs, key=key))

    def sows(self) -> bool:
        """Whether a call leaves values that were not there before, such as losses that are no outputs."""
        params, state = self.shapes
        after = jax.eval_shape(self._left, params, state, *self.inputs)
        return len(jax.tree.leaves(after)) > len(jax.tree.leaves(state))

    def _left(self, params: PyTree, state: PyTree, *inputs: Any) -> PyTree:
        """The state after a call, with all that the call leaves."""
        return self.run(params, state, *inputs)[1]

    @contextlib.contextmanager
    def saying_where(self) -> Iterator[None]:
        """An error of the model's own says at which shape it was called."""
        try:
            yield
        except Exception as error:
            width, depth = self.shape
            called = ", ".join(f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(self.inputs) if _is_array(x))
            note = f"(setup made the model at width {width}, depth {depth}, and called it with {called})"
            if note not in getattr(error, "__notes__", []):
                error.add_note(note)
            raise

    @abc.abstractmethod
    def _run(self, params: PyTree, state: PyTree, *inputs: Any, key: Any = None) -> tuple[jax.Array, PyTree]:
        """`run` of each framework."""

    def with_factors(self, factors: ForwardFactors) -> FrameworkModel:
        """The model with these factors, if it takes any. They may be traced."""
        return self if self.factors is None else self._with(factors=factors)

    def in_evaluation(self) -> FrameworkModel:
        """The model as in evaluation: options such as train=True are turned around, and `evaluated` is applied."""
        turned = {name: EVALUATION.get(name, value) for name, value in self.options.items()}
        return self._with(options=turned, training=False)

    def _with(self, **fields: Any) -> FrameworkModel:
        """The model with other fields, and with all that was made of the factory already."""
        other = copy.copy(self)
        vars(other).update(fields)
        return other

    def apply(self, model: Any, *args: Any, **options: Any) -> Any:
        """The model's own call."""
        if self.factors is not None:
            options = {"factors": self.factors, **options}
        return self.of(model)(*args, **options)

    def of(self, model: Any) -> Callable[..., Any]:
        """The function that calls the model: (*inputs, **options) -> outputs."""
        return model if self.call is None else functools.partial(self.call, model)

    @abc.abstractmethod
    def join(self, params: PyTree, state: PyTree) -> Any:
        """The model in the user's form."""

    @abc.abstractmethod
    def split(self, model: Any) -> tuple[PyTree, PyTree]:
        """The inverse of `join`."""

    def statistics(self, state: PyTree) -> list[Any]:
        """The batch statistics in a state."""
        del state
        return []

    @functools.cached_property
    def made(self) -> Any:
        """The object that the factory returns, with shapes for arrays."""
        return self.make(jax.random.key(KEY))

    @functools.cached_property
    def shapes(self) -> tuple[PyTree, PyTree]:
        """(params, state) with shapes for arrays."""
        return self._traced_init[1]

    @property
    def named(self) -> Any:
        """What a function in `overrides` selects parameters from, with their paths in the place of arrays."""
        return named(self.shapes[0])

    @functools.cached_property
    def _traced_init(self) -> Any:
        with self.saying_where():
            return jax.make_jaxpr(self.init, return_shape=True)(jax.random.key(KEY))

    @functools.cached_property
    def random_state(self) -> PyTree:
        """A state for a forward pass. Floating arrays are random, and positive as variances are. All others, such as
        tables of positions, masks and limits, are those of the init, of which nothing else is computed."""
        closed, (params, state) = self._traced_init
        leaves, structure = jax.tree.flatten(state)
        of_init = [not jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
        mask = [False] * len(jax.tree.leaves(params)) + of_init
        values = iter(evaluate(closed, *(jax.random.key(KEY) for _ in closed.jaxpr.invars), mask=mask))
        numbers = (
            next(values) if same else jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.5, leaf.shape), leaf.dtype)
            for leaf, same in zip(leaves, of_init, strict=True)
        )
        return jax.tree.unflatten(structure, numbers)

    def init_eagerly(self, key: Any) -> tuple[PyTree, PyTree]:
        """`init`, operation by operation, so that equal blocks share compiled code, and without a forward pass."""
        if not self.init_calls:
            return self.init(key)
        closed, shapes = self._traced_init
        return jax.tree.unflatten(jax.tree.structure(shapes), evaluate(closed, key))

    @property
    def traced(self) -> InitProgram:
        closed, (params, _) = self._traced_init
        return InitProgram(closed, params)


class LinenModel(FrameworkModel):
    """Users hold variables: {"params": ..., "batch_stats": ..., ...}."""

    layout = "in_out"
    init_calls = True

    def init(self, key: Any) -> tuple[PyTree, PyTree]:
        rngs = key if isinstance(key, Mapping) else {"params": key, "dropout": key}
        factors = {} if self.factors is None else {"factors": self.factors}
        return self.split(self.made.init(rngs, *self.inputs, **factors, **self.options))

    def _run(self, params: PyTree, state: PyTree, *inputs: Any, key: Any = None) -> tuple[jax.Array, PyTree]:
        mutable = [*state.keys() - {"params"}, "intermediates"]
        outputs, after = self._called(params, state, inputs, mutable, key)
        return self.output(outputs), {name: after.get(name, value) for name, value in state.items()}

    def _left(self, params: PyTree, state: PyTree, *inputs: Any) -> PyTree:
        left = _with_axes(lambda: self._called(params, state, inputs, DenyList("params"), None)[1])
        return {**state, **left}

    def _called(self, params: PyTree, state: PyTree, inputs: Sequence[Any], mutable: Any, key: Any) -> Any:
        # A stream that has no key of its own, such as "noise", takes the one named "params".
        rngs = dict.fromkeys(("params", "dropout"), _key(key))
        return self.apply(self.join(params, state), *inputs, rngs=rngs, mutable=mutable, **self.options)

    def of(self, model: Any) -> Callable[..., Any]:
        return functools.partial(self.made.apply, model)

    def join(self, params: PyTree, state: PyTree) -> Any:
        """Variables whose "params" are those and, of the state, what is none: arrays of integers."""
        others = state.get("params")
        return {**state, "params": params if others is None else _first(params, others)}

    def split(self, model: Any) -> tuple[PyTree, PyTree]:
        if not isinstance(model, Mapping) or "params" not in model:
            what = f"{{{', '.join(list(model)[:3])}, ...}}" if isinstance(model, Mapping) else type(model).__name__
            raise TypeError(f"expected Linen's variables, {{'params': ...}}, as init returns them; got {what}")
        state = {name: model[name] for name in model if name not in ("params", "intermediates")}
        params, others = model["params"], without_parameters(model["params"])
        return (parameters_only(params), {**state, "params": others}) if jax.tree.leaves(others) else (params, state)

    def statistics(self, state: PyTree) -> list[Any]:
        return jax.tree.leaves(state.get("batch_stats", {}))


class HaikuModel(FrameworkModel):
    """Users hold params, or (params, state) of `transform_with_state`; a call is apply(params, [state,] [rng,] ...),
    where `without_apply_rng` takes the rng away."""

    layout = "in_out"
    init_calls = True

    def init(self, key: Any) -> tuple[PyTree, PyTree]:
        return self.split(self.made.init(key, *self.inputs, **self.options))

    def _run(self, params: PyTree, state: PyTree, *inputs: Any, key: Any = None) -> tuple[jax.Array, PyTree]:
        model = (params, state) if self._stateful else (params,)
        rng = (_key(key),) if self._takes_rng else ()
        outputs = self.made.apply(*model, *rng, *inputs, **self.options)
        outputs, after = outputs if self._stateful else (outputs, state)
        return self.output(outputs), after

    def of(self, model: Any) -> Callable[..., Any]:
        return functools.partial(self.made.apply, model)

    def join(self, params: PyTree, state: PyTree) -> Any:
        return (params, state) if self._stateful else params

    def split(self, model: Any) -> tuple[PyTree, PyTree]:
        if self._stateful and not isinstance(model, tuple):
            raise TypeError(f"expected (params, state), as init returns them; got a {type(model).__name__}")
        return model if self._stateful else (model, {})

    def statistics(self, state: PyTree) -> list[Any]:
        averages = {name: average for name, average in state.items() if name.endswith("_ema")}
        return [leaf for leaf in jax.tree.leaves(averages) if is_parameter(leaf)]

    @property
    def _stateful(self) -> bool:
        return type(self.made).__name__ == "TransformedWithState"

    @property
    def _takes_rng(self) -> bool:
        return list(inspect.signature(self.made.apply).parameters)[1 + self._stateful] == "rng"


class NNXModel(FrameworkModel):
    """Users hold the module. make: a key, or Rngs -> the module."""

    layout = "in_out"

    def _run(self, params: PyTree, state: PyTree, *inputs: Any, key: Any = None) -> tuple[jax.Array, PyTree]:
        module = self.join(params, state)
        if not self.training:
            module.eval()
        outputs = self.apply(module, *inputs, **self.options)
        return self.output(outputs), self.split(module)[1]

    def join(self, params: PyTree, state: PyTree) -> Any:
        from flax import nnx  # here, since it is slow to load

        # The module takes over the variables of these trees, and may change them: it gets copies.
        return nnx.merge(self._parts[0], *jax.tree.map(lambda leaf: leaf, (params, state)))

    def split(self, model: Any) -> tuple[PyTree, PyTree]:
        from flax import nnx

        if not isinstance(model, nnx.Module):
            raise TypeError(f"expected the module that init returns; got a {type(model).__name__}")
        params, state = nnx.state(model, _is_trained, ...)
        return params, state

    @property
    def named(self) -> Any:
        return self.join(super().named, self.shapes[1])

    def statistics(self, state: PyTree) -> list[Any]:
        from flax import nnx

        variables = jax.tree.leaves(state, is_leaf=lambda variable: isinstance(variable, nnx.Variable))
        return [variable[...] for variable in variables if isinstance(variable, nnx.BatchStat)]

    def _traced(self) -> Any:
        from flax import nnx

        rngs = nnx.Rngs(KEY)
        # At each change of a traced count NNX asks for its sharding, for whose refusal JAX searches all that was
        # traced so far: 16 s for 48 blocks. A count that is no traced array takes 1 s.
        rngs.default.count = nnx.RngCount(np.zeros((), np.uint32), tag="default")  # type: ignore[arg-type]
        module = self.make(rngs)
        # NNX takes a traced array in a plain attribute, such as a table of positions, for a constant of the module.
        for _, node in nnx.iter_graph(module):
            for name, value in dict(vars(node)).items() if isinstance(node, nnx.Module) else ():
                if isinstance(value, jax.core.Tracer):
                    setattr(node, name, nnx.data(value))
        return module

    @functools.cached_property
    def _parts(self) -> tuple[Any, Any]:
        """(graph definition, `_traced_init`)"""
        from flax import nnx

        definitions = []

        def parts() -> tuple[PyTree, PyTree]:
            definition, *trees = nnx.split(self._traced(), _is_trained, ...)
            definitions.append(definition)
            return trees[0], trees[1]

        with self.saying_where():
            traced = jax.make_jaxpr(parts, return_shape=True)()
        return definitions[0], traced

    @functools.cached_property
    def made(self) -> Any:
        return self.join(*self.shapes)

    @functools.cached_property
    def _traced_init(self) -> Any:
        return self._parts[1]


class PytreeModel(FrameworkModel):
    """Users hold the model, a pytree that has its arrays: Equinox's modules, or parameters beside a function."""

    def _run(self, params: PyTree, state: PyTree, *inputs: Any, key: Any = None) -> tuple[jax.Array, PyTree]:
        return self.output(self.apply(self.evaluated(self.join(params, state)), *inputs, **self.options)), state

    def evaluated(self, model: Any) -> Any:
        """What the user holds, as in evaluation if it is not training."""
        return model

    def init(self, key: Any) -> tuple[PyTree, PyTree]:
        # Static fields that compare by identity, such as a functools.partial, differ from one instance to the next.
        return self.split(jax.tree.unflatten(jax.tree.structure(self.made), jax.tree.leaves(self.make(key))))

    def join(self, params: PyTree, state: PyTree) -> Any:
        return _merged(params, state, self.made)

    def split(self, model: Any) -> tuple[PyTree, PyTree]:
        return parameters_only(model), without_parameters(model)

    @functools.cached_property
    def made(self) -> Any:
        models = []
        try:
            jax.eval_shape(lambda: models.append(self.make(jax.random.key(KEY))))
        except jax.errors.ConcretizationTypeError as error:
            raise TypeError(
                "the factory cannot be traced by jax.eval_shape, since it looks at the numbers of an array (the "
                "traceback above says where): make that array with NumPy, or leave out what looks at it"
            ) from error
        return jax.tree.map(lambda leaf: jax.typeof(leaf) if _is_array(leaf) else leaf, models[0])


class EquinoxModel(PytreeModel):
    """As any pytree, with weights (out, in, ...)."""

    layout = "out_in"

    def evaluated(self, model: Any) -> Any:
        if self.training:
            return model
        import equinox

        return equinox.nn.inference_mode(model)


class StatefulEquinoxModel(EquinoxModel):
    """Users hold (module, state), as `eqx.nn.make_with_state` gives them; a call takes both and gives (outputs, state).

    The parameters are the module's alone: they have its structure.
    """

    def _run(self, params: PyTree, state: PyTree, *inputs: Any, key: Any = None) -> tuple[jax.Array, PyTree]:
        outputs, after = self.apply(self.evaluated(self.join(params, state)), *inputs, **self.options)
        return self.output(outputs), (state[0], after)

    def join(self, params: PyTree, state: PyTree) -> Any:
        arrays, layers = state
        layers = jax.tree.map(lambda leaf: leaf, layers)  # Equinox invalidates a state that is updated: here a copy
        return _merged(params, arrays, self.made[0]), layers

    def split(self, model: Any) -> tuple[PyTree, PyTree]:
        if not isinstance(model, tuple):
            raise TypeError(f"expected (module, state), as init returns them; got a {type(model).__name__}")
        params, arrays = super().split(model[0])
        return params, (arrays, model[1])

    def statistics(self, state: PyTree) -> list[Any]:
        return [leaf for leaf in jax.tree.leaves(state[1]) if is_parameter(leaf)]


def _merged(params: PyTree, state: PyTree, made: PyTree) -> PyTree:
    """A pytree with the arrays of `params` and `state` and the leaves of `made` that are no arrays."""
    return _first(params, state, jax.tree.map(lambda leaf: None if _is_array(leaf) else leaf, made))


def _first(*trees: PyTree) -> PyTree:
    """Of each leaf the first that is not None."""
    return jax.tree.map(
        lambda *leaves: next((leaf for leaf in leaves if leaf is not None), None),
        *trees,
        is_leaf=lambda leaf: leaf is None,
    )


def without_parameters(tree: PyTree) -> PyTree:
    """The tree with its arrays that are no parameters, and None for all else."""
    return jax.tree.map(lambda leaf: leaf if _is_array(leaf) and not is_parameter(leaf) else None, tree)


def _is_trained(path: Any, value: Any) -> bool:
    """Whether a variable of NNX is a parameter: codes of integers are state."""
    from flax import nnx

    return isinstance(value, nnx.Param) and is_parameter(value)


def _with_axes(call: Callable[[], Any]) -> Any:
    """What a call returns, in which every axis name that nothing binds is an axis of size 1."""
    names: list[str] = []
    while True:
        bound = call
        for name in names:
            bound = jax.vmap(bound, in_axes=(), out_axes=None, axis_name=name, axis_size=1)
        try:
            return bound()
        except NameError as error:
            unbound = re.search(r"unbound axis name: (\w+)", str(error))
            if unbound is None or unbound[1] in names:
                raise
            names.append(unbound[1])


def as_returned(outputs: Any) -> Any:
    """The argument `output` of `setup` for a model that returns its logits alone."""
    return outputs


def adapt(
    factory: Callable[..., Any],
    width: int,
    depth: int,
    inputs: tuple[Any, ...],
    options: Mapping[str, Any],
    call: Callable[..., Any] | None,
    output: Callable[[Any], jax.Array],
) -> FrameworkModel:
    """The model that a factory makes at a width and depth; `setup` explains the arguments.

    Its factors are 1 if its call takes factors. Raises TypeError if it is of no framework known here.
    """
    inputs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x, inputs)
    kind, make = _kind_and_make(factory, width, depth)
    if call is not None and kind in (LinenModel, HaikuModel):
        raise TypeError("call= is for models that are called themselves; for Linen and Haiku pass options=")

    def model_of(kind: type[FrameworkModel]) -> FrameworkModel:
        return kind(make, inputs, options, call, output, shape=(width, depth))

    model = model_of(kind)
    if kind is PytreeModel and _is_of("equinox", model.made):
        model = model_of(EquinoxModel)
    elif kind is PytreeModel and isinstance(model.made, tuple) and _is_of("equinox", model.made[-1]):
        model = model_of(StatefulEquinoxModel)
    if call is None and kind not in (LinenModel, HaikuModel) and not callable(model.made):
        raise TypeError(
            f"the factory gives a {type(model.made).__name__}, which cannot be called: pass call=lambda model, x: ..."
        )
    takes_factors = "factors" in inspect.signature(call or type(model.made).__call__).parameters
    return dataclasses.replace(model, factors=ForwardFactors(1.0, 1.0, 1.0)) if takes_factors else model


def _kind_and_make(
    factory: Callable[..., Any], width: int, depth: int
) -> tuple[type[FrameworkModel], Callable[[Any], Any]]:
    """(the framework of a factory, key -> what it makes), by the names of its arguments, or by what it makes of none"""
    made_by: Any = factory
    while isinstance(made_by, functools.partial):
        made_by = made_by.func
    # A class' own signature may be that of its metaclass, which hides the names.
    arguments = inspect.signature(made_by.__init__ if inspect.isclass(made_by) else made_by).parameters
    if "rngs" in arguments:
        from flax import nnx

        rngs = lambda key: key if isinstance(key, nnx.Rngs) else nnx.Rngs(key)  # noqa: E731
        return NNXModel, lambda key: factory(width, depth, rngs=rngs(key))
    if "key" in arguments:
        return PytreeModel, lambda key: factory(width, depth, key=key)
    with jax.ensure_compile_time_eval():  # of its arrays, where `setup` is called inside of jit
        module = factory(width, depth)
    if isinstance(module, nn.Module) or _is_of("haiku", module):
        return LinenModel if isinstance(module, nn.Module) else HaikuModel, lambda key: module
    raise TypeError(
        f"factory(width, depth) gives a {type(module).__name__}, which is neither a Linen module nor a Haiku "
        "transform. NNX: factory(width, depth, rngs). Equinox, or parameters in any pytree: factory(width, "
        "depth, key). The names rngs and key tell which"
    )


def _key(key: Any) -> jax.Array:
    return jax.random.key(KEY) if key is None else key


def _is_of(framework: str, model: Any) -> bool:
    return any(cls.__module__.split(".")[0] == framework for cls in type(model).__mro__)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")

"""A user's batches as what the training loop takes: arrays, a function of the step, or anything that is iterated."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import inspect
import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.data.batch_checks import checked_batch
from depthmup.data.batches import batch_indices
from depthmup.data.pipeline import part_of
from depthmup.names import short

PyTree = Any
Batch = tuple[Any, ...]
Batches = Any  # what a user may give: `feed_of` says what
SPREAD = 16  # steps, evenly over a training, whose batches tell all of them
READ = 64  # batches of an iterator that are looked at: later ones are not made without all before them


@dataclasses.dataclass(frozen=True, eq=False)
class UserFeed(abc.ABC):
    """What all kinds of batches have in common. held_out: the batches that are evaluated at the end, or none."""

    batch_size: int
    held_out: Sequence[Batch]

    in_memory = True

    def __getstate__(self) -> dict[str, Any]:
        """Without what is cached, such as traced programs."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def splits(self) -> Mapping[str, Any]:
        return {"validation_": self.held_out} if self.held_out else {}

    @property
    def evaluated_examples(self) -> int:
        return sum(map(size_of, self.held_out))

    @property
    def steps_per_epoch(self) -> int:
        return 1

    @abc.abstractmethod
    def first_steps(self, count: int) -> list[Batch]:
        """The batches of the first steps."""

    @functools.cached_property
    def first(self) -> Batch:
        """The batch of the first step."""
        return self.first_steps(1)[0]

    def first_examples(self, count: int) -> Batch:
        """`count` examples, those of the first steps, as one batch."""
        batches = self.first_steps(-(-count // self.batch_size))
        return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves])[:count], *batches)

    def at(self, steps: Sequence[int]) -> Iterator[Batch]:
        """The batches of these steps, which rise."""
        raise NotImplementedError

    def hashes(self, lengths: Collection[int]) -> dict[str, str]:
        """{what, in words: a hash of its numbers} of the batches of trainings of these numbers of steps. Feeds of any
        kind that give the same batches have equal hashes of each step."""
        steps = sorted({step for length in lengths for step in sample(length)})
        return {f"the batches of step {step}": digest_of(b) for step, b in zip(steps, self.at(steps), strict=False)}

    def looked_at(self, steps: int) -> Iterator[tuple[str, Batch]]:
        """(which, in words, the batch) of all batches of a training that can be looked at beforehand."""
        places = sample(min(steps, READ) if self.in_memory is False else steps)
        return ((f"the batch of step {step}", batch) for step, batch in zip(places, self.at(places), strict=False))

    def resident(self) -> PyTree:
        return ()

    def indices(self, start: int, stop: int) -> np.ndarray:
        """Of a feed that makes a whole batch: the places in it."""
        return np.tile(np.arange(self.batch_size, dtype=np.int32), (stop - start, 1))

    def pick(self, resident: PyTree, indices: jax.Array, step: jax.Array) -> Any:
        raise NotImplementedError

    def train(self, start: int, stop: int, shard: tuple[int, int] = (0, 1)) -> Generator[Batch, None, None]:
        yield from ()

    def prepared(self, raw: Any, step: Any = None, places: Any = None) -> Batch:
        return tuple(raw)

    def evaluated(self, split: Sequence[Batch], parts: int = 1, shard: tuple[int, int] = (0, 1)) -> Iterator[Batch]:
        return iter(split)

    def raw_shapes(self, examples: int) -> Batch:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((examples, *jnp.shape(leaf)[1:]), jnp.result_type(leaf)), self.first
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays(UserFeed):
    """Arrays of examples, which lie on the devices. shuffled: a new permutation each epoch; else in their order."""

    arrays: Batch
    shuffled: bool = True

    @property
    def examples(self) -> int:
        return size_of(self.arrays)

    @property
    def steps_per_epoch(self) -> int:
        return self.examples // self.batch_size

    def first_steps(self, count: int) -> list[Batch]:
        return [
            jax.tree.map(lambda leaf, of_step=of_step: np.asarray(leaf)[of_step], self.arrays)
            for of_step in self.indices(0, min(count, self.steps_per_epoch))
        ]

    def at(self, steps: Sequence[int]) -> Iterator[Batch]:
        arrays = self.resident()
        for step in steps:
            (places,) = self.indices(step, step + 1)
            yield jax.tree.map(lambda leaf, places=places: leaf[places], arrays)

    def hashes(self, lengths: Collection[int]) -> dict[str, str]:
        if self.shuffled:
            # Arrays and batch size tell all batches; those of the first steps, that they are shuffled.
            return {**super().hashes([min(2, *lengths)]), "the arrays of examples": digest_of(self.arrays)}
        return super().hashes(lengths) | {
            f"the first {steps} batches": digest_of(
                jax.tree.map(lambda leaf, end=steps * self.batch_size: leaf[:end], self.arrays)
            )
            for steps in lengths
        }

    def looked_at(self, steps: int) -> Iterator[tuple[str, Batch]]:
        arrays, size = self.resident(), self.batch_size
        for start in range(0, self.examples, size):
            first = min(start, self.examples - size)
            words = f"the examples from {first} on" if self.shuffled else f"the batch of step {start // size}"
            yield words, jax.tree.map(lambda leaf, first=first: leaf[first : first + size], arrays)

    def resident(self) -> PyTree:
        return jax.tree.map(np.asarray, self.arrays)

    def indices(self, start: int, stop: int) -> np.ndarray:
        if self.shuffled:
            return batch_indices(self.examples, self.batch_size, start, stop, 0)
        # The loop asks for whole calls of steps, the last of which may be beyond the end and are not taken.
        steps = np.minimum(np.arange(start, stop), self.steps_per_epoch - 1)
        return (steps[:, None] * self.batch_size + np.arange(self.batch_size)).astype(np.int32)

    def pick(self, resident: PyTree, indices: jax.Array, step: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[indices], resident)


@dataclasses.dataclass(frozen=True, eq=False)
class TracedFeed(UserFeed):
    """A function step -> batch that JAX can trace: batches are made inside the compiled step."""

    function: Callable[[Any], Batch]

    def first_steps(self, count: int) -> list[Batch]:
        return list(self.at(range(count)))

    def at(self, steps: Sequence[int]) -> Iterator[Batch]:
        return (tuple(self.function(jnp.int32(step))) for step in steps)

    @functools.cached_property
    def _program(self) -> tuple[Any, Any]:
        """(jaxpr, tree structure of a batch): arrays that the function closes over are not compiled in as constants."""
        closed, shapes = jax.make_jaxpr(self.function, return_shape=True)(jnp.int32(0))
        return closed, jax.tree.structure(shapes)

    def resident(self) -> PyTree:
        return [np.asarray(array) for array in self._program[0].consts]

    def pick(self, resident: PyTree, indices: jax.Array, step: jax.Array) -> Any:
        closed, structure = self._program
        batch = jax.tree.unflatten(structure, jax.core.eval_jaxpr(closed.jaxpr, resident, step))
        whole = indices.shape[0] == self.batch_size
        return batch if whole else jax.tree.map(lambda leaf: leaf[indices], batch)


@dataclasses.dataclass(frozen=True, eq=False)
class Streamed(UserFeed):
    """Batches that the host hands over at each step. from_step: a step -> an iterator from its batch on.
    in_order: whether a batch is made after all before it."""

    from_step: Callable[[int], Iterator[Batch]]
    in_order: bool = False

    in_memory = False

    def first_steps(self, count: int) -> list[Batch]:
        return [tuple(batch) for batch in itertools.islice(self.from_step(0), count)]

    def at(self, steps: Sequence[int]) -> Iterator[Batch]:
        if not self.in_order:
            return (tuple(next(self.from_step(step))) for step in steps)
        return (tuple(batch) for step, batch in enumerate(self.from_step(0)) if step in steps)

    def hashes(self, lengths: Collection[int]) -> dict[str, str]:
        return super().hashes([min(READ, length) for length in lengths] if self.in_order else lengths)

    def train(self, start: int, stop: int, shard: tuple[int, int] = (0, 1)) -> Generator[Batch, None, None]:
        step, part, shapes = start, part_of(self.batch_size, shard), _shapes(self.first)
        for batch in self.from_step(start):
            if _shapes(batch) != shapes:
                raise ValueError(
                    f"all batches must have the shapes of the first, {shapes}; that of step {step} has {_shapes(batch)}"
                )
            yield jax.tree.map(lambda leaf: np.asarray(leaf)[part], tuple(batch))
            step += 1
        raise ValueError(f"the batches run out after {step} steps: give as many as there are steps, or fewer steps")


def feed_of(batches: Batches, steps: int, batch_size: int | None = None, held_out: Batches = None) -> UserFeed:
    """The feed of what a user gives:

      a tuple or list of arrays (*inputs, targets), with `batch_size`: a data set, which is shuffled each epoch;
      a function step -> (*inputs, targets), which must be pure; one that JAX can trace costs the host nothing;
      a function without arguments -> an iterator of batches, made anew for each group of trials;
      an iterable of batches, of which `steps` are read once and kept.

    held_out: arrays, or an iterable of batches. Raises ValueError for batches that run out, are not of one size, or
    have parts of different lengths, and for a function that is not pure.
    """
    kept = _held_out(held_out, batch_size)
    if callable(batches):
        return _of_function(batches, steps, kept)
    if _are_arrays(batches):
        arrays = checked_batch(batches)
        if batch_size is None:
            raise ValueError("batches are arrays of examples: give batch_size=, how many of them a step takes")
        examples = size_of(arrays)
        if not 1 <= batch_size <= examples:
            raise ValueError(f"batch_size must be from 1 to the number of examples, {examples}, got {batch_size}")
        return Arrays(batch_size, kept, arrays)
    if not isinstance(batches, Iterable) or hasattr(batches, "shape"):
        raise ValueError(
            "batches must be arrays (*inputs, targets), a function step -> (*inputs, targets), or an iterable of "
            f"batches, got {short(batches)}"
        )
    read = [checked_batch(batch) for batch in itertools.islice(batches, steps)]
    if len(read) < steps:
        raise ValueError(f"the batches run out after {len(read)} of {steps} steps: {steps} are needed")
    sizes = sorted({size_of(batch) for batch in read})
    if len(sizes) > 1:
        raise ValueError(f"batches must have equal sizes, these have {sizes[0]} to {sizes[-1]} examples: drop the last")
    arrays = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *read)
    return Arrays(sizes[0], kept, arrays, shuffled=False)


def of_size(batches: Batches, size: int) -> Batches:
    """The same batches with another number of examples: arrays as they are, a function (step, batch_size) of the step
    alone. Raises ValueError for others, whose size cannot be changed."""
    if _are_arrays(batches):
        return batches
    if callable(batches) and len(inspect.signature(batches).parameters) == 2:
        return lambda step: batches(step, size)
    raise ValueError(
        "a sweep of batch sizes needs batches of each: give arrays of examples, or a function (step, batch_size) -> "
        "batch, whose second argument is a plain integer"
    )


def _are_arrays(batches: Batches) -> TypeGuard[Sequence[Any]]:
    """Whether they are arrays of all examples, not batches."""
    return isinstance(batches, tuple | list) and bool(batches) and all(hasattr(leaf, "shape") for leaf in batches)


def _of_function(function: Callable[..., Any], steps: int, held_out: Sequence[Batch]) -> UserFeed:
    parameters = inspect.signature(function).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if all(p.default is not p.empty for p in positional):
        start = function()
        if not isinstance(start, Iterable):
            raise ValueError(f"the function of batches must return an iterator of batches, it returns {short(start)}")
        size = size_of(checked_batch(next(iter(start), ())))
        return Streamed(size, held_out, lambda step: itertools.islice(function(), step, None), in_order=True)
    if sum(p.default is p.empty for p in positional) > 1:
        raise ValueError(
            "a function of batches takes the step alone; with several batch_size= it takes (step, batch_size)"
        )
    first, again = (checked_batch(function(0)) for _ in range(2))
    if digest_of(first) != digest_of(again):
        raise ValueError(
            "the function of batches is not pure: it gave other numbers for step 0 when it was called again. Derive "
            "its random numbers from the step alone, such as by jax.random.fold_in(key, step)"
        )
    size = size_of(first)
    try:
        jax.eval_shape(function, jax.ShapeDtypeStruct((), jnp.int32))
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError, TypeError):
        return Streamed(size, held_out, lambda step: map(function, itertools.count(step)))
    return TracedFeed(size, held_out, function)


def _held_out(batches: Batches, batch_size: int | None) -> list[Batch]:
    if batches is None:
        return []
    if _are_arrays(batches):
        examples = size_of(batches)
        size = min(batch_size or examples, examples)
        starts = range(0, examples, size)
        arrays = checked_batch(batches)
        return [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i : i + size], arrays) for i in starts]
    if not isinstance(batches, Iterable):
        raise ValueError(f"evaluate must be arrays (*inputs, targets), or an iterable of batches, got {short(batches)}")
    return [checked_batch(batch) for batch in batches]


def size_of(batch: Iterable[Any]) -> int:
    """The number of examples of a batch. Raises ValueError if its parts differ in it."""
    lengths = [jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(tuple(batch))]
    if not lengths or () in lengths or len(set(lengths)) > 1:
        shapes = ", ".join(str(jnp.shape(leaf)) for leaf in jax.tree.leaves(tuple(batch)))
        raise ValueError(
            f"inputs and targets must be arrays with as many examples along their first axis, got the shapes {shapes}"
        )
    return int(lengths[0][0])


def _shapes(batch: Iterable[Any]) -> list[tuple[int, ...]]:
    return [tuple(jnp.shape(leaf)) for leaf in jax.tree.leaves(tuple(batch))]


def sample(steps: int) -> list[int]:
    """Steps of a training of so many: SPREAD of them from the first to the last, and all powers of 2."""
    spread = np.linspace(0, steps - 1, SPREAD).round().astype(int).tolist()
    return sorted({*spread, *(2**k for k in range(steps.bit_length()) if 2**k < steps)})


def digest_of(tree: PyTree) -> str:
    """A hash of the numbers of a tree of arrays."""
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = np.ascontiguousarray(
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        )
        total.update(f"{array.dtype} {array.shape}".encode())
        total.update(array.view(np.uint8).data if array.size and array.ndim else array.tobytes())
    return total.hexdigest()[:16]

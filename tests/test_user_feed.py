"""A user's batches: what the training loop gets of each kind."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup.data.user_feed import Arrays, Streamed, TracedFeed, digest_of, feed_of

X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.arange(12, dtype=np.int32)


def streamed(feed, start, count):
    return [tuple(map(np.asarray, batch)) for batch in itertools.islice(feed.train(start, 100), count)]


def test_arrays_are_an_epoch_of_batches_then_another():
    feed = feed_of((X, Y), steps=6, batch_size=4)
    assert isinstance(feed, Arrays)
    assert feed.steps_per_epoch == 3
    places = feed.indices(0, 6)
    assert sorted(places[:3].ravel()) == sorted(places[3:].ravel()) == list(range(12))
    assert (places[:3] != places[3:]).any()
    x, y = feed.pick(feed.resident(), places[1], 1)
    np.testing.assert_array_equal(x, X[places[1]])
    np.testing.assert_array_equal(y, places[1])


def test_batches_that_are_read_keep_their_order():
    feed = feed_of(iter([(X[i : i + 4], Y[i : i + 4]) for i in (8, 0, 4)]), steps=3)
    np.testing.assert_array_equal(feed.pick(feed.resident(), feed.indices(0, 3)[0], 0)[1], Y[8:])
    np.testing.assert_array_equal(feed.pick(feed.resident(), feed.indices(2, 3)[0], 2)[1], Y[4:8])


def test_a_stream_goes_on_where_it_stopped():
    """An iterator is made anew and its first batches are passed over; a function of the step is called from there."""
    for given in (
        lambda: ((X[i : i + 2], Y[i : i + 2]) for i in range(10)),
        lambda step: (X[int(step) : int(step) + 2], Y[int(step) : int(step) + 2]),
    ):
        feed = feed_of(given, steps=10)
        assert isinstance(feed, Streamed)
        whole, rest = streamed(feed, 0, 6), streamed(feed, 4, 2)
        for a, b in zip(whole[4:], rest, strict=True):
            np.testing.assert_array_equal(a[1], b[1])
        halves = [next(feed.train(3, 100, shard=(i, 2)))[1] for i in range(2)]
        np.testing.assert_array_equal(np.concatenate(halves), whole[3][1])


def test_a_traced_function_gives_its_own_batches():
    """Arrays that it closes over lie on the device and are no constants of the program."""
    x, y = jnp.asarray(X), jnp.asarray(Y)
    feed = feed_of(lambda step: (x[step % 3 * 4 + jnp.arange(4)], y[step % 3 * 4 + jnp.arange(4)]), steps=5)
    assert isinstance(feed, TracedFeed)
    resident = feed.resident()
    assert sum(array.size for array in resident) >= X.size + Y.size
    program = jax.jit(lambda resident, step: feed.pick(resident, jnp.arange(4), step))
    np.testing.assert_array_equal(program(resident, jnp.int32(4))[0], X[4:8])


def test_held_out_batches_are_split_as_training_is():
    feed = feed_of((X, Y), steps=1, batch_size=5, held_out=(X, Y))
    assert [len(batch[1]) for batch in feed.evaluated(feed.splits["validation_"])] == [5, 5, 2]
    assert feed.evaluated_examples == 12
    assert feed_of((X, Y), steps=1, batch_size=5).splits == {}


def test_a_digest_sees_every_number():
    assert digest_of((X, Y)) == digest_of((X.copy(), Y.copy()))
    other = Y.copy()
    other[-1] += 1
    assert digest_of((X, Y)) != digest_of((X, other))
    assert digest_of(X) != digest_of(X.reshape(2, 12))


def test_a_generator_that_is_empty():
    with pytest.raises(ValueError, match="run out after 0 of 2 steps"):
        feed_of(iter([]), steps=2)

"""The cache of bodies: bounded in bytes, least recently used out first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from walrq.storage.cache import ByteBoundedCache


@given(st.lists(st.tuples(st.integers(0, 8), st.none() | st.binary(max_size=40)), max_size=60))
def test_the_cache_never_holds_more_than_its_bytes(actions: list[tuple[int, bytes | None]]) -> None:
    """Against a plain list ordered by last use."""
    cache: ByteBoundedCache[int, bytes] = ByteBoundedCache(64)
    model: list[tuple[int, bytes]] = []
    for key, value in actions:
        held = dict(model)
        if value is None:
            assert held.get(key) == cache.get(key)
            if key in held:
                model = [*[item for item in model if item[0] != key], (key, held[key])]
        else:
            cache.put(key, value)
            model = [*[item for item in model if item[0] != key], (key, value)]
            while sum(len(body) for _, body in model) > 64:
                model.pop(0)
        assert sum(len(body) for _, body in model) == cache.bytes
        assert len(model) == len(cache)


def test_a_value_larger_than_the_cache_is_not_kept_and_evicts_nothing() -> None:
    """One giant must not empty the cache."""
    cache: ByteBoundedCache[str, bytes] = ByteBoundedCache(10)
    cache.put("small", b"12345")
    cache.put("giant", b"x" * 11)

    assert cache.get("giant") is None
    assert b"12345" == cache.get("small")


def test_hits_and_misses_are_counted() -> None:
    """For the gauge."""
    cache: ByteBoundedCache[str, bytes] = ByteBoundedCache(10)
    cache.put("a", b"1")
    cache.get("a")
    cache.get("b")

    assert (1, 1) == (cache.hits, cache.misses)


def test_cleared_means_empty() -> None:
    """Bytes too."""
    cache: ByteBoundedCache[str, bytes] = ByteBoundedCache(10)
    cache.put("a", b"1")
    cache.clear()

    assert (0, 0) == (cache.bytes, len(cache))

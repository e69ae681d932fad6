"""What is kept at hand: bodies bounded in bytes, read descriptors in number."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from walrq.storage.cache import ByteBoundedCache, ReadHandles
from walrq.testing.disk import SimDisk


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


HANDLES_MAX = 3
FILES = 40


class CountingDisk(SimDisk):
    """A disk that counts the descriptors that are open."""

    open_now = 0
    open_most = 0

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        """Open and count."""
        handle = super().open(path, create=create, read_only=read_only)
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        return handle

    def close(self, handle: int) -> None:
        """Close and count."""
        super().close(handle)
        self.open_now -= 1


def filled() -> CountingDisk:
    """A disk with FILES files, each holding its own number."""
    disk = CountingDisk()
    for number in range(FILES):
        handle = disk.open(f"file-{number}", create=True)
        disk.pwritev(handle, [bytes([number])], 0)
        disk.close(handle)
    disk.open_most = 0
    return disk


def test_any_number_of_files_is_read_through_few_descriptors(rng: random.Random) -> None:
    """A descriptor per segment would run out just when the backlog is large."""
    disk = filled()
    handles = ReadHandles(disk, HANDLES_MAX)
    numbers = [rng.randrange(FILES) for _ in range(500)]

    read = [handles.pread(f"file-{number}", 1, 0)[0] for number in numbers]

    assert numbers == read
    # One more for a moment: the new one is opened before the oldest is closed.
    assert disk.open_most <= HANDLES_MAX + 1
    assert disk.open_now <= HANDLES_MAX


def test_closed_means_none_is_open() -> None:
    """A descriptor left behind keeps a recycled file's blocks busy."""
    disk = filled()
    handles = ReadHandles(disk, HANDLES_MAX)
    for number in range(5):
        handles.pread(f"file-{number}", 1, 0)

    handles.forget("file-4")
    assert HANDLES_MAX - 1 == disk.open_now
    handles.close()
    assert 0 == disk.open_now

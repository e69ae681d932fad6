"""The rules for skipping hold themselves to tests."""

from __future__ import annotations

import pytest

from tests.requirements import THINGS, missing, require, required_names
from tests.seeds import derive_seed


def test_what_is_here_is_not_skipped() -> None:
    """A machine that has everything runs everything."""
    assert None is missing(("redis", "root"), here=lambda _: True, required=frozenset())


def test_a_missing_thing_skips_with_its_reason() -> None:
    """The reason names the thing and the remedy, because the table at the end shows only that."""
    verdict = missing(("redis", "root"), here=lambda name: name == "root", required=frozenset({"root"}))

    assert (f"needs redis: {THINGS['redis'][1]}", False) == verdict


def test_a_missing_thing_that_was_required_fails() -> None:
    """WALRQ_REQUIRE is how a machine says that a skip would be a lie."""
    verdict = missing(("redis",), here=lambda _: False, required=frozenset({"redis"}))

    assert verdict is not None
    assert verdict[1]


def test_an_unknown_required_name_is_refused() -> None:
    """A typing error must not switch the requirement off."""
    with pytest.raises(ValueError, match="rediss"):
        required_names("rediss")
    assert frozenset({"redis", "root"}) == required_names(" redis, root,")
    assert "redis" in required_names("all")


def test_an_unknown_thing_is_a_mistake_in_the_test() -> None:
    """require() of a name nobody probes for would always skip."""
    with pytest.raises(KeyError):
        require("no-such-thing")


def test_each_test_has_its_own_repeatable_seed() -> None:
    """The derived seed depends on session and test alone, so one printed number repeats a failure."""
    assert 2 == len({derive_seed(1, "a"), derive_seed(1, "b")})
    assert 2 == len({derive_seed(1, "a"), derive_seed(2, "a")})

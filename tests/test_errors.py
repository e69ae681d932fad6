"""The error table is complete and says the same thing to every door."""

from __future__ import annotations

import inspect

import pytest

from walrq import errors
from walrq.errors import ERRORS, Code, OutcomeUnknown, WalrqError, from_code


def all_errors() -> list[type[WalrqError]]:
    """Every error class of the module."""
    return [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, WalrqError)]


def test_every_code_has_its_row() -> None:
    """A code without a row could not be answered."""
    assert set(Code) == set(ERRORS)


def test_every_error_a_class_names_is_its_row() -> None:
    """Going from class to code to row comes back to a class of the same family."""
    families = (
        errors.RequestError,
        errors.Unavailable,
        errors.OutcomeUnknown,
        errors.ProtocolError,
        errors.StorageError,
    )
    own = [error for error in all_errors() if "code" in vars(error) and error is not WalrqError]

    assert len(own) >= len(Code)
    for error in own:
        row = ERRORS[error.code]
        assert [issubclass(error, f) for f in families] == [issubclass(row.error, f) for f in families]


@pytest.mark.parametrize("code", Code)
def test_a_code_becomes_its_error_with_text_and_details(code: Code) -> None:
    """What travels on the wire arrives as the class of the table."""
    error = from_code(int(code), "why", {"nearest": "orders"})

    assert type(error) is ERRORS[code].error
    assert ("why", {"nearest": "orders"}) == (error.text, dict(error.details))
    assert str(error) == "why"


@pytest.mark.parametrize("code", Code)
def test_an_error_knows_what_its_row_says(code: Code) -> None:
    """`definite` and `retry` come from the table only."""
    error = from_code(int(code), "")
    row = ERRORS[type(error).code]

    assert (row.definite, row.retry) == (error.definite, error.retry)
    assert type(error).__name__ == error.text


@pytest.mark.parametrize("number", [0, -1, 20, 69, 100, 2**31])
def test_a_code_of_a_newer_server_is_indefinite(number: int) -> None:
    """When unsure, the operation may have happened."""
    assert number not in set(Code)
    error = from_code(number, "something new")

    assert isinstance(error, OutcomeUnknown)
    assert not error.definite
    assert number == error.details["code"]


def test_only_outcome_unknown_is_indefinite() -> None:
    """X08: an ended session is *unknown*, never *failed*; everything else proves that nothing happened."""
    indefinite = {code for code, row in ERRORS.items() if not row.definite}

    assert indefinite == {code for code, row in ERRORS.items() if issubclass(row.error, OutcomeUnknown)}
    assert {
        Code.OUTCOME_UNKNOWN,
        Code.SESSION_ENDED,
        Code.LEADERSHIP_LOST,
        Code.CONNECTION_LOST,
    } <= indefinite


def test_a_retried_request_is_never_one_that_the_caller_must_change() -> None:
    """`retry` belongs to *not now* and to *unknown*, not to mistakes of the caller."""
    assert not any(row.retry for row in ERRORS.values() if issubclass(row.error, errors.RequestError))
    assert all(row.retry for row in ERRORS.values() if issubclass(row.error, errors.Unavailable))


def test_an_ended_session_is_not_retried() -> None:
    """The retry would be executed as something new."""
    assert not ERRORS[Code.SESSION_ENDED].retry


def test_code_ranges_mean_what_they_say() -> None:
    """The number alone tells definite from indefinite."""
    for code, row in ERRORS.items():
        assert row.definite == (not 70 <= code <= 79)
        assert issubclass(row.error, errors.RequestError) == (code < 50)
        assert issubclass(row.error, errors.Unavailable) == (50 <= code <= 69)


def test_status_numbers_are_legal_at_every_door() -> None:
    """HTTP 3xx to 5xx, one capital word for RESP, exit statuses neither success nor a signal's."""
    for row in ERRORS.values():
        assert 300 <= row.http <= 599
        assert row.resp.isalpha() and row.resp.isupper()
        assert 1 <= row.exit <= 125

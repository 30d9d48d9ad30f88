"""What lies behind an error, for whoever runs the service."""

from __future__ import annotations

from model_store.errors import GalleryUnavailable, reason_of


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_an_error_that_nothing_caused_has_none() -> None:
    assert reason_of(GalleryUnavailable("gone")) is None


def test_it_is_the_first_of_all_causes_in_one_line() -> None:
    first = ConnectionError("refused\n  by 10.0.0.7")
    error = caused_by(GalleryUnavailable("gone"), caused_by(RuntimeError("not asked"), first))
    assert reason_of(error) == "ConnectionError: refused by 10.0.0.7"


def test_errors_that_cause_themselves_come_to_an_end() -> None:
    """gRPC raises them so where a server is gone."""
    itself = RuntimeError("not asked")
    caused_by(itself, itself)
    assert reason_of(itself) is None
    assert reason_of(caused_by(GalleryUnavailable("gone"), itself)) == "RuntimeError: not asked"

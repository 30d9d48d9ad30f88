"""Values of a union, once a test has checked which of its types they have."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def instance_of(kind: type[T], value: object) -> T:
    """Return the value, which is of that type."""
    assert isinstance(value, kind), value
    return value


def not_none(value: T | None) -> T:
    """Return the value, which is there."""
    assert value is not None
    return value

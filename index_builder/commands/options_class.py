"""Turns the fields of a class into the options of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, get_type_hints

Options = TypeVar("Options")


def with_options(
    options: type[Options],
) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Return a decorator that makes the fields of ``options`` the parameters of a command.

    Parameters
    ----------
    options : a dataclass with typer annotations.
    """

    def decorated(command: Callable[[Options], None]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:  # noqa: ANN401 - typer has checked them
            command(options(**given))

        called.__annotations__.update(get_type_hints(options, include_extras=True))
        vars(called)["__signature__"] = inspect.signature(options, eval_str=True)
        return called

    return decorated

"""The root of the error family."""


class VouchError(Exception):
    """Root of the family."""


def reason_of(error: BaseException) -> str | None:
    """Return the first cause of an error in one line; None if the error has no cause.

    The result is only for the operator, because texts of other programs may contain names of hosts
    and files. Some libraries raise an error with the same error as its cause. Such a chain of
    causes is endless.
    """
    causes = [error]
    while causes[-1].__cause__ is not None and causes[-1].__cause__ not in causes:
        causes.append(causes[-1].__cause__)
    if len(causes) == 1:
        return None
    return f"{type(causes[-1]).__name__}: {' '.join(str(causes[-1]).split())}"

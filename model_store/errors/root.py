"""The root of the error family."""


class VouchError(Exception):
    """Root of the family."""


def reason_of(error: BaseException) -> str | None:
    """Return the first cause of an error, in one line; None where its message says all.

    It is for the operator: other programs have written it, and it may name hosts and files. Some
    raise an error from the same error, so the chain may be endless.
    """
    causes = [error]
    while causes[-1].__cause__ is not None and causes[-1].__cause__ not in causes:
        causes.append(causes[-1].__cause__)
    if len(causes) == 1:
        return None
    return f"{type(causes[-1]).__name__}: {' '.join(str(causes[-1]).split())}"

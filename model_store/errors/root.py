"""The root of the error family."""


class VouchError(Exception):
    """Root of the family."""


def reason_of(error: BaseException) -> str | None:
    """Return the first cause of an error, in one line; None where its message says all.

    It is for whoever runs the service: other programs have written it, who name hosts and files.
    """
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    return None if first is error else f"{type(first).__name__}: {' '.join(str(first).split())}"

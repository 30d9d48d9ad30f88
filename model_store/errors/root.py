"""The root of the error family."""


class VouchError(Exception):
    """Root of the family."""

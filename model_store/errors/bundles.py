"""Errors of opening, storing and signing bundles."""

from model_store.errors.root import VouchError


class ArchiveError(VouchError):
    """A backup cannot be made, or cannot be restored."""


class BundleError(VouchError):
    """The bundle cannot be served."""


class BundleNotFound(BundleError):
    """There is no bundle at the path."""


class PointerUnreadable(BundleError):
    """`CURRENT` or `PREVIOUS` names no bundle, or cannot be read."""


class BundleTampered(BundleError):
    """A file differs from its entry in the manifest."""


class BundleUntrusted(BundleError):
    """The bundle is not signed by a trusted key."""


class BundleMismatch(BundleError):
    """The parts do not belong together, or this release does not support the schema version."""


class SigningKeyError(VouchError):
    """A signing key or verification key cannot be read or written."""

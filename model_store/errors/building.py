"""Errors of the index builder."""

from model_store.errors.root import VouchError


class BuildError(VouchError):
    """A step of the index builder failed."""


class ConfigError(BuildError):
    """The configuration is wrong."""


class UsageError(ConfigError):
    """Options of a command contradict each other, or an option has an invalid value."""


class DatasetError(BuildError):
    """The data is missing or invalid."""


class TooManyBadImages(DatasetError):
    """More images are unreadable than the limit allows."""


class SourceUnavailable(DatasetError):
    """The source of the images cannot be read."""


class OutputError(BuildError):
    """The output cannot be written: there is no space, or no permission."""


class RunInUse(BuildError):
    """Another process works in the run directory."""


class WeightsError(BuildError):
    """Pretrained weights are missing, cannot be read, or do not fit the trunk."""


class EncoderSourceError(BuildError):
    """An external encoder cannot be converted to Vouch's contract."""


class TrainingDiverged(BuildError):
    """The loss is not finite."""


class StepNotReady(BuildError):
    """An earlier step has not been run."""


class ParityError(BuildError):
    """The exported encoder gives other embeddings than the trained encoder."""


class CalibrationError(BuildError):
    """There are too few calibration queries, or queries of a required kind are missing."""


class RequirementNotMet(BuildError):
    """The outcome of a build does not meet a requirement."""


class CertificateError(BuildError):
    """A certificate, its key or its feedback cannot be read or written."""


class TransferError(BuildError):
    """A bundle cannot be copied to or from another location."""

"""Errors of the index builder."""

from model_store.errors.root import VouchError


class BuildError(VouchError):
    """A step of the index builder failed."""


class ConfigError(BuildError):
    """The configuration is wrong."""


class UsageError(ConfigError):
    """Options of a command contradict each other, or one has a value that it cannot have."""


class DatasetError(BuildError):
    """The data is missing or not what it should be."""


class TooManyBadImages(DatasetError):
    """More of the images are unreadable than was allowed."""


class SourceUnavailable(DatasetError):
    """The source of the images cannot be read, or no longer."""


class OutputError(BuildError):
    """The output cannot be written: there is no space, or no permission."""


class RunInUse(BuildError):
    """Another process works in the run directory."""


class WeightsError(BuildError):
    """Pretrained weights are missing, cannot be read, or do not fit the trunk."""


class EncoderSourceError(BuildError):
    """An encoder that was made elsewhere cannot be brought to Vouch's contract."""


class TrainingDiverged(BuildError):
    """The loss is no longer a number."""


class StepNotReady(BuildError):
    """An earlier step has not been run."""


class ParityError(BuildError):
    """The exported encoder disagrees with the trained one."""


class CalibrationError(BuildError):
    """Too few queries, or none of a kind that is needed."""


class RequirementNotMet(BuildError):
    """The outcome of a build is not as required."""


class CertificateError(BuildError):
    """A certificate, its key or its feedback cannot be read or written."""


class TransferError(BuildError):
    """A bundle cannot be brought to another place, or from it."""

"""All error classes of Vouch.

Every error that a caller can cause or must handle is one of these classes; a plain ``ValueError``
is a programming mistake. A message states what was received, what was expected and what to do. It
contains no information that a client of the service must not see.

::

    VouchError
    ├── ImageError               the bytes are not an image that can be searched with
    │   ├── EmptyImage           there are no bytes
    │   ├── UnsupportedImage     not one of the accepted formats
    │   ├── ImageTooLarge        more bytes or more pixels than allowed
    │   ├── ImageTooCostly       decoding takes more time or memory than allowed
    │   └── CorruptImage         an accepted format, but truncated or damaged
    ├── InvalidRequest           an option of the request is missing or out of range
    │   ├── InvalidCursor        not a cursor that the service gave for this list
    │   ├── InvalidFilter        not a filter of items
    │   ├── OrderUnavailable     the gallery has no probabilities to list by
    │   ├── InvalidVector        an invalid vector or list of neighbours
    │   ├── ImagesNotTaken       the gallery was made of vectors; images are refused
    │   ├── InvalidText          a text that cannot be used as a query
    │   ├── TextUnavailable      the gallery has no text encoder
    │   ├── UnknownSource        the calibration has no queries from this source
    │   ├── InvalidHead          the HTTP request is malformed
    │   ├── InvalidForm          an incomplete or invalid form
    │   └── UnsupportedMediaType the path does not accept this kind of body
    ├── AccessError              the caller is not allowed to do that now
    │   ├── Unauthenticated      the API key is missing or not valid
    │   ├── Forbidden            the API key does not allow this
    │   ├── MisdirectedRequest   the request has another host name
    │   ├── QuotaExceeded        the key may keep no more items or galleries
    │   └── RateLimited          too many requests by this caller
    │       └── SearchesUsedUp   the key has no searches left in this period
    ├── OutdatedCursor           a cursor into a list of another bundle
    ├── NotFound                 the requested object does not exist
    │   ├── GalleryNotFound
    │   ├── ItemNotFound
    │   ├── SampleNotFound
    │   ├── QueryNotFound        the query is not known (any longer)
    │   ├── DecisionNotFound     no such decision was made on the gallery
    │   ├── GroupNotFound        no such group of unknown queries, or it has changed
    │   ├── ShadowNotFound       no bundle is tested beside the current one
    │   └── PathNotFound
    ├── MethodNotAllowed         the path exists, the method does not
    ├── IdentitiesUnavailable    the gallery has no usable labels
    ├── FeedbackNotKept          no storage, or no calibration to refine
    ├── Overloaded               too many concurrent requests
    ├── DeadlineExceeded         no answer within the time a request may take
    ├── UploadTooSlow            the body of a request arrives too slowly
    ├── NotReady                 the service cannot answer at the moment
    ├── GalleryUnavailable       the engine that holds the gallery does not answer
    │   └── ChangeUnconfirmed    it is unknown whether the change is kept
    ├── ActivationRefused        the bundle cannot replace the served one
    ├── WriteError               no part of a change was stored
    │   ├── WriteRefused         the gallery does not accept the change
    │   │   └── GalleryExists    the name of a gallery is taken
    │   ├── KeyReused            the Idempotency-Key was sent before with another request
    │   ├── GallerySuperseded    another bundle has become current
    │   ├── StorageBusy          another process is writing
    │   ├── StorageFull          there is no disk space for the change
    │   └── StorageFailed        the disk cannot be written or read
    │       └── LogDamaged       the log of changes is damaged
    ├── KeysError                the file of API keys cannot be used
    │   └── KeysRequired         other machines could use a service without keys
    ├── EncoderError             the encoder cannot be used
    │   ├── EncoderContractError the ONNX file does not keep the contract of `model_store.encoder`
    │   ├── ProviderUnavailable  the requested execution provider does not run here
    │   ├── EncoderStopped       it stopped during work and is restarted
    │   └── EncodingFailed       it runs, but cannot embed this image
    ├── ArchiveError             a backup cannot be made, or cannot be restored
    ├── BundleError              the bundle cannot be served
    │   ├── BundleNotFound       nothing there
    │   ├── PointerUnreadable    `CURRENT` names no bundle, or cannot be read
    │   ├── BundleTampered       a file differs from the manifest
    │   ├── BundleUntrusted      not signed by a key that is trusted
    │   └── BundleMismatch       parts that do not belong together
    ├── SigningKeyError          a key to sign or to verify with cannot be read or written
    ├── InternalError            a defect of Vouch; without internal details
    └── BuildError               a step of the index builder failed
        ├── ConfigError          the configuration is wrong
        │   └── UsageError       options of a command contradict each other
        ├── DatasetError         the data is missing or invalid
        │   ├── TooManyBadImages more of the images are unreadable than was allowed
        │   └── SourceUnavailable the source of the images can no longer be read
        ├── OutputError          the output cannot be written
        ├── RunInUse             another process works in the run directory
        ├── WeightsError         pretrained weights are missing or do not fit
        ├── EncoderSourceError   an external encoder cannot be converted
        ├── TrainingDiverged     the loss is not finite
        ├── StepNotReady         an earlier step has not been run
        ├── ParityError          the exported encoder disagrees with the trained one
        ├── CalibrationError     too few queries, or a kind is missing
        ├── RequirementNotMet    the outcome of a build misses a requirement
        ├── CertificateError     a certificate or its feedback cannot be read or written
        └── TransferError        a bundle cannot be copied to or from a place

`building` defines the errors of the index builder, `bundles` those of bundles, `root` the base
class.
"""

from model_store.errors.building import (
    BuildError,
    CalibrationError,
    CertificateError,
    ConfigError,
    DatasetError,
    EncoderSourceError,
    OutputError,
    ParityError,
    RequirementNotMet,
    RunInUse,
    SourceUnavailable,
    StepNotReady,
    TooManyBadImages,
    TrainingDiverged,
    TransferError,
    UsageError,
    WeightsError,
)
from model_store.errors.bundles import (
    ArchiveError,
    BundleError,
    BundleMismatch,
    BundleNotFound,
    BundleTampered,
    BundleUntrusted,
    PointerUnreadable,
    SigningKeyError,
)
from model_store.errors.root import VouchError

__all__ = [
    "ArchiveError",
    "BuildError",
    "BundleError",
    "BundleMismatch",
    "BundleNotFound",
    "BundleTampered",
    "BundleUntrusted",
    "CalibrationError",
    "CertificateError",
    "ConfigError",
    "DatasetError",
    "EncoderSourceError",
    "OutputError",
    "ParityError",
    "PointerUnreadable",
    "RequirementNotMet",
    "RunInUse",
    "SigningKeyError",
    "SourceUnavailable",
    "StepNotReady",
    "TooManyBadImages",
    "TrainingDiverged",
    "TransferError",
    "UsageError",
    "VouchError",
    "WeightsError",
]
"""Errors defined in the other modules; all classes below are public too."""


class ImageError(VouchError):
    """The bytes are not a valid image."""


class EmptyImage(ImageError):
    """There are no bytes."""


class UnsupportedImage(ImageError):
    """The bytes are not in one of the accepted formats."""


class ImageTooLarge(ImageError):
    """More bytes or more pixels than allowed."""


class ImageTooCostly(ImageError):
    """Decoding the image takes more time or memory than allowed."""


class CorruptImage(ImageError):
    """An accepted format, but truncated or damaged."""


class InvalidRequest(VouchError):
    """An option of the request is missing or out of range."""


class InvalidCursor(InvalidRequest):
    """The cursor is not valid for this list."""


class InvalidFilter(InvalidRequest):
    """The filter is not valid."""


class OrderUnavailable(InvalidRequest):
    """The gallery is not calibrated and has no probabilities to order by."""


class InvalidVector(InvalidRequest):
    """The vector or the list of neighbours is not valid."""


class ImagesNotTaken(InvalidRequest):
    """The gallery was made of vectors and does not accept images."""


class InvalidText(InvalidRequest):
    """The text is not a valid query."""


class TextUnavailable(InvalidRequest):
    """The gallery cannot be searched with texts."""


class UnknownSource(InvalidRequest):
    """The calibration has no queries from this source."""


class InvalidHead(InvalidRequest):
    """The HTTP request is malformed."""


class InvalidForm(InvalidRequest):
    """The form is incomplete or not valid."""


class UnsupportedMediaType(InvalidRequest):
    """The path does not accept this kind of body."""


class OutdatedCursor(VouchError):
    """The cursor belongs to another bundle's list."""


class AccessError(VouchError):
    """The caller is not allowed to do that now."""


class Unauthenticated(AccessError):
    """The API key is missing or not valid."""


class Forbidden(AccessError):
    """The API key does not allow this."""


class MisdirectedRequest(AccessError):
    """The request names another host than the service."""


class QuotaExceeded(AccessError):
    """The API key has reached its limit of items or galleries."""


class RateLimited(AccessError):
    """Too many requests by this caller."""


class SearchesUsedUp(RateLimited):
    """The API key has no searches left in this period."""


class NotFound(VouchError):
    """The requested object does not exist."""


class GalleryNotFound(NotFound):
    """No gallery of that name is served."""


class ItemNotFound(NotFound):
    """No item of that id is in the gallery."""


class SampleNotFound(NotFound):
    """No sample query of that id comes with the bundle."""


class QueryNotFound(NotFound):
    """The query is unknown or has expired."""


class DecisionNotFound(NotFound):
    """No such decision was made on the gallery."""


class GroupNotFound(NotFound):
    """No such group of unknown queries, or its members have changed."""


class ShadowNotFound(NotFound):
    """No bundle is tested beside the served one."""


class IdentitiesUnavailable(VouchError):
    """The gallery has no usable labels."""


class FeedbackNotKept(VouchError):
    """Feedback cannot be stored, or there is no calibration to refine."""


class PathNotFound(NotFound):
    """The service has nothing at that path."""


class MethodNotAllowed(VouchError):
    """The path does not support this method."""


class WriteError(VouchError):
    """No part of the change was stored."""


class WriteRefused(WriteError):
    """The gallery does not accept this change."""


class GalleryExists(WriteRefused):
    """The name of a gallery is taken."""


class KeyReused(WriteError):
    """The Idempotency-Key was sent before, with another request."""


class GallerySuperseded(WriteError):
    """Another bundle of the gallery has become current."""


class StorageBusy(WriteError):
    """Another process is writing to the gallery."""


class StorageFull(WriteError):
    """There is no disk space for the change."""


class StorageFailed(WriteError):
    """The disk cannot be written or read."""


class LogDamaged(StorageFailed):
    """The log of the gallery's changes is damaged."""


class KeysError(VouchError):
    """The file of API keys cannot be used."""


class KeysRequired(KeysError):
    """Other machines could use a service without API keys."""


class EncoderError(VouchError):
    """The encoder cannot be used."""


class EncoderContractError(EncoderError):
    """The ONNX file does not keep the contract of `model_store.encoder.onnx`."""


class ProviderUnavailable(EncoderError):
    """The requested execution provider does not run here."""


class EncoderStopped(EncoderError):
    """The encoder stopped during work and is being restarted."""


class EncodingFailed(EncoderError):
    """The encoder runs, but cannot embed this image."""


class Overloaded(VouchError):
    """The service is processing its maximum number of requests."""


class DeadlineExceeded(VouchError):
    """The request took longer than allowed."""


class UploadTooSlow(VouchError):
    """The body of the request arrived too slowly."""


class NotReady(VouchError):
    """The service cannot answer at the moment."""


class GalleryUnavailable(VouchError):
    """The engine that holds the gallery does not answer."""


class ChangeUnconfirmed(GalleryUnavailable):
    """It is unknown whether the change was stored."""


class ActivationRefused(VouchError):
    """The bundle cannot replace the served one, which stays active."""


class InternalError(VouchError):
    """Something went wrong in the service."""

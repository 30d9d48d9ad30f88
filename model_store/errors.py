"""All error classes of Vouch.

Every error that a caller can cause or must handle is one of these classes; a plain ``ValueError``
is a programming mistake. A message states what was received, what was expected and what to do. A
message contains only information that a client of the service may see.

::

    VouchError
    ├── ImageError               the bytes are not an image that can be searched with
    │   ├── EmptyImage           there are no bytes
    │   ├── UnsupportedImage     the format is not one of the accepted formats
    │   ├── ImageTooLarge        the image has more bytes or pixels than allowed
    │   ├── ImageTooCostly       decoding takes more time or memory than allowed
    │   └── CorruptImage         the image is truncated or damaged
    ├── InvalidRequest           an option of the request is missing or out of range
    │   ├── InvalidCursor        the cursor is not valid for this list
    │   ├── InvalidFilter        the filter is not valid
    │   ├── OrderUnavailable     the gallery has no probabilities to order by
    │   ├── InvalidVector        an invalid vector or list of neighbours
    │   ├── ImagesNotTaken       the gallery was made of vectors; images are refused
    │   ├── InvalidText          a text that cannot be used as a query
    │   ├── TextUnavailable      the gallery has no text encoder
    │   ├── UnknownSource        the calibration has no queries from this source
    │   ├── InvalidHead          the HTTP request is malformed
    │   ├── InvalidForm          an incomplete or invalid form
    │   └── UnsupportedMediaType the path does not accept this kind of body
    ├── AccessError              the caller is not allowed to send this request now
    │   ├── Unauthenticated      the API key is missing or not valid
    │   ├── Forbidden            the API key does not allow this
    │   ├── MisdirectedRequest   the request has another host name
    │   ├── QuotaExceeded        the key has reached its limit of items or galleries
    │   └── RateLimited          too many requests by this caller
    │       └── SearchesUsedUp   the key has no searches left in this period
    ├── OutdatedCursor           a cursor into a list of another bundle
    ├── NotFound                 the requested object does not exist
    │   ├── GalleryNotFound
    │   ├── ItemNotFound
    │   ├── SampleNotFound
    │   ├── QueryNotFound        the query is unknown or has expired
    │   ├── DecisionNotFound     the gallery has no decision with this number
    │   ├── GroupNotFound        the group does not exist, or has changed
    │   ├── ShadowNotFound       the gallery has no second bundle under test
    │   └── PathNotFound
    ├── MethodNotAllowed         the path does not support this method
    ├── IdentitiesUnavailable    P(same) cannot be fitted to the labels
    ├── FeedbackNotKept          feedback cannot be stored, or no calibration
    ├── Overloaded               too many concurrent requests
    ├── DeadlineExceeded         the request took longer than allowed
    ├── UploadTooSlow            the body of a request arrives too slowly
    ├── NotReady                 the service cannot answer at the moment
    ├── GalleryUnavailable       the engine that holds the gallery does not answer
    │   └── ChangeUnconfirmed    it is unknown whether the change was stored
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
    │   └── KeysRequired         other machines could use a service without API keys
    ├── EncoderError             the encoder cannot be used
    │   ├── EncoderContractError the ONNX file violates the contract
    │   ├── ProviderUnavailable  the requested execution provider does not run here
    │   ├── EncoderStopped       the encoder stopped and is being restarted
    │   └── EncodingFailed       the encoder cannot embed this image
    │       └── NoEmbedding      the embedding is not finite, or zero
    ├── ArchiveError             a backup cannot be made, or cannot be restored
    ├── BundleError              the bundle cannot be served
    │   ├── BundleNotFound       there is no bundle at the path
    │   ├── PointerUnreadable    `CURRENT` names no bundle, or cannot be read
    │   ├── BundleTampered       a file differs from the manifest
    │   ├── BundleUntrusted      the bundle is not signed by a trusted key
    │   └── BundleMismatch       parts that do not belong together
    ├── SigningKeyError          a signing key or verification key cannot be read or written
    ├── InternalError            a defect of Vouch; without internal details
    └── BuildError               a step of the index builder failed
        ├── ConfigError          the configuration is wrong
        │   └── UsageError       options of a command contradict each other
        ├── DatasetError         the data is missing or invalid
        │   ├── TooManyBadImages more images are unreadable than the limit allows
        │   └── SourceUnavailable the source of the images can no longer be read
        ├── OutputError          the output cannot be written
        ├── RunInUse             another process works in the run directory
        ├── WeightsError         pretrained weights are missing or do not fit
        ├── EncoderSourceError   an external encoder cannot be converted
        ├── TrainingDiverged     the loss is not finite
        ├── StepNotReady         an earlier step has not been run
        ├── ParityError          the exported encoder disagrees with the trained one
        ├── CalibrationError     too few queries, or a required kind is missing
        ├── RequirementNotMet    the outcome of a build misses a requirement
        ├── CertificateError     a certificate or its feedback cannot be read or written
        └── TransferError        a bundle cannot be copied to or from another location
"""


class VouchError(Exception):
    """Root of the family."""


class ImageError(VouchError):
    """The bytes are not a valid image."""


class EmptyImage(ImageError):
    """There are no bytes."""


class UnsupportedImage(ImageError):
    """The bytes are not in one of the accepted formats."""


class ImageTooLarge(ImageError):
    """The image has more bytes or more pixels than allowed."""


class ImageTooCostly(ImageError):
    """Decoding the image takes more time or memory than allowed."""


class CorruptImage(ImageError):
    """The image has an accepted format, but is truncated or damaged."""


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
    """The caller is not allowed to send this request now."""


class Unauthenticated(AccessError):
    """The API key is missing or not valid."""


class Forbidden(AccessError):
    """The API key does not allow this."""


class MisdirectedRequest(AccessError):
    """The request names another host than the service."""


class QuotaExceeded(AccessError):
    """The API key has reached its limit of items or galleries."""


class RateLimited(AccessError):
    """The caller has sent too many requests."""


class SearchesUsedUp(RateLimited):
    """The API key has no searches left in this period."""


class NotFound(VouchError):
    """The requested object does not exist."""


class GalleryNotFound(NotFound):
    """The service has no gallery with this name."""


class ItemNotFound(NotFound):
    """The gallery has no item with this id."""


class SampleNotFound(NotFound):
    """The bundle has no sample query with this id."""


class QueryNotFound(NotFound):
    """The query is unknown or has expired."""


class DecisionNotFound(NotFound):
    """The gallery has no decision with this number."""


class GroupNotFound(NotFound):
    """The group of unknown queries does not exist, or its members have changed."""


class ShadowNotFound(NotFound):
    """The gallery has no second bundle under test."""


class IdentitiesUnavailable(VouchError):
    """No probability of the same identity can be fitted to the labels."""


class FeedbackNotKept(VouchError):
    """Feedback cannot be stored, or there is no calibration to refine."""


class PathNotFound(NotFound):
    """The service has no resource at this path."""


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
    """A service without API keys would be open to other machines."""


class EncoderError(VouchError):
    """The encoder cannot be used."""


class EncoderContractError(EncoderError):
    """The ONNX file violates the contract of `model_store.encoder.onnx`."""


class ProviderUnavailable(EncoderError):
    """The requested execution provider does not run here."""


class EncoderStopped(EncoderError):
    """The encoder stopped during work and is being restarted."""


class EncodingFailed(EncoderError):
    """The encoder is running, but cannot embed this image."""


class NoEmbedding(EncodingFailed):
    """The encoder's embedding of this image or text is not finite, or zero."""


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
    """The bundle cannot replace the served bundle, which remains active."""


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


class InternalError(VouchError):
    """The service has an internal error."""


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


SEE_LOG = " The log of the service has the reason."
"""Last sentence of the message of a `GalleryUnavailable`, for a client of the service."""


def with_reason(error: VouchError) -> str:
    """Return the message of an error for the operator; a `GalleryUnavailable` with its first cause.

    The cause is a text of another program, so it may contain a password.
    """
    reason = reason_of(error) if isinstance(error, GalleryUnavailable) else None
    return f"{str(error).removesuffix(SEE_LOG)} ({reason})" if reason else str(error)

"""The error family of Vouch, whole.

Every error that a caller can cause or must act on is one of these; a bare ``ValueError`` remains
a programming mistake. A message states what was received, what was wanted and what to do, and holds
nothing that a client of the service may not see.

::

    VouchError
    ├── ImageError               the bytes are not an image that can be searched with
    │   ├── EmptyImage           there are no bytes
    │   ├── UnsupportedImage     not one of the accepted formats
    │   ├── ImageTooLarge        more bytes or more pixels than allowed
    │   ├── ImageTooCostly       decoding takes more time or memory than one image may
    │   └── CorruptImage         an accepted format, but truncated or damaged
    ├── InvalidRequest           an option of the request is missing or out of range
    │   ├── InvalidCursor        not a cursor that the service gave for this list
    │   ├── InvalidFilter        not a filter of items
    │   ├── OrderUnavailable     the gallery has no probabilities to list by
    │   ├── InvalidVector        a vector, or a list of neighbours, that cannot be decided on
    │   ├── ImagesNotTaken       the gallery was made of vectors, and takes no images
    │   ├── InvalidText          a text that cannot be searched with
    │   ├── TextUnavailable      the gallery cannot be searched with texts
    │   ├── UnknownSource        the gallery was not calibrated with queries from there
    │   ├── InvalidHead          the head of the request is not as HTTP wants it
    │   ├── InvalidForm          a form that ends before its end, or is none
    │   └── UnsupportedMediaType a body of a kind that the path does not read
    ├── AccessError              the caller may not do that, or not now
    │   ├── Unauthenticated      there is no key, or not a good one
    │   ├── Forbidden            the key allows less than that
    │   ├── MisdirectedRequest   it was sent to a name that is not the service's
    │   ├── QuotaExceeded        the key may keep no more items or galleries
    │   └── RateLimited          too many requests of this caller
    │       └── SearchesUsedUp   the key's searches of this period have been made
    ├── OutdatedCursor           a cursor into a list of another bundle
    ├── NotFound                 what the request names does not exist
    │   ├── GalleryNotFound
    │   ├── ItemNotFound
    │   ├── SampleNotFound
    │   ├── QueryNotFound        the query is not, or no longer, known
    │   ├── DecisionNotFound     no such decision was made on the gallery
    │   ├── GroupNotFound        no such group of unknown queries, or it has changed
    │   ├── ShadowNotFound       no bundle is tried beside the one that is served
    │   └── PathNotFound
    ├── MethodNotAllowed         the path exists, the method does not
    ├── IdentitiesUnavailable    the gallery has no usable labels
    ├── FeedbackNotKept          nowhere to keep it, or nothing calibrated that it could refine
    ├── Overloaded               as many requests as are taken at once are being worked on
    ├── DeadlineExceeded         no answer within the time a request may take
    ├── UploadTooSlow            the body of a request arrives too slowly
    ├── NotReady                 the service cannot answer at the moment
    ├── GalleryUnavailable       the engine that holds the gallery does not answer
    │   └── ChangeUnconfirmed    it is unknown whether the change is kept
    ├── ActivationRefused        a bundle cannot take the place of the one that is served
    ├── WriteError               a change of a gallery was not kept, and nothing of it
    │   ├── WriteRefused         the gallery takes no changes, or not this one
    │   │   └── GalleryExists    the name of a gallery is taken
    │   ├── KeyReused            the Idempotency-Key was sent before with another request
    │   ├── GallerySuperseded    another bundle has become current
    │   ├── StorageBusy          another process is writing
    │   ├── StorageFull          there is no room for it
    │   └── StorageFailed        the disk does not take it, or does not give it back
    │       └── LogDamaged       the changes are not those that were acknowledged
    ├── KeysError                the file of API keys cannot be used
    │   └── KeysRequired         others could reach a service that asks for no key
    ├── EncoderError             the encoder cannot be used
    │   ├── EncoderContractError the ONNX file does not keep the contract of `model_store.encoder`
    │   ├── ProviderUnavailable  the requested execution provider does not run here
    │   ├── EncoderStopped       it stopped while it worked, and is started again
    │   └── EncodingFailed       it runs, but cannot embed this image
    ├── ArchiveError             a backup cannot be made, or cannot be restored
    ├── BundleError              the bundle cannot be served
    │   ├── BundleNotFound       nothing there
    │   ├── PointerUnreadable    `CURRENT` names no bundle, or cannot be read
    │   ├── BundleTampered       a file differs from the manifest
    │   ├── BundleUntrusted      not signed by a key that is trusted
    │   └── BundleMismatch       parts that do not belong together
    ├── SigningKeyError          a key to sign or to verify with cannot be read or written
    ├── InternalError            a mistake of ours; says nothing of the inside
    └── BuildError               a step of the index builder failed
        ├── ConfigError          the configuration is wrong
        │   └── UsageError       options of a command contradict each other
        ├── DatasetError         the data is missing or not what it should be
        │   ├── TooManyBadImages more of the images are unreadable than was allowed
        │   └── SourceUnavailable the source of the images can no longer be read
        ├── OutputError          what was made cannot be written: no space, no permission
        ├── RunInUse             another process works in the run directory
        ├── WeightsError         pretrained weights are missing or do not fit
        ├── EncoderSourceError   an encoder made elsewhere cannot be brought here
        ├── TrainingDiverged     the loss is no longer a number
        ├── StepNotReady         an earlier step has not been run
        ├── ParityError          the exported encoder disagrees with the trained one
        ├── CalibrationError     too few queries, or none of a kind that is needed
        ├── RequirementNotMet    the outcome of a build is not as required
        ├── CertificateError     a certificate or its feedback cannot be read or written
        └── TransferError        a bundle cannot be brought to another place, or from it

Those of the index builder are in `building`, those of bundles in `bundles`, the base in `root`.
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
"""Those that are defined elsewhere; all that follow are public as well."""


class ImageError(VouchError):
    """The bytes are not an image that can be searched with."""


class EmptyImage(ImageError):
    """There are no bytes."""


class UnsupportedImage(ImageError):
    """The bytes are not in one of the accepted formats."""


class ImageTooLarge(ImageError):
    """More bytes or more pixels than allowed."""


class ImageTooCostly(ImageError):
    """Decoding the image takes more time or memory than one image may."""


class CorruptImage(ImageError):
    """An accepted format, but truncated or damaged."""


class InvalidRequest(VouchError):
    """An option of the request is missing or out of range."""


class InvalidCursor(InvalidRequest):
    """Not a cursor that the service gave for this list."""


class InvalidFilter(InvalidRequest):
    """Not a filter of items."""


class OrderUnavailable(InvalidRequest):
    """The gallery is not calibrated and has no probabilities to order by."""


class InvalidVector(InvalidRequest):
    """A vector, or a list of neighbours, that cannot be decided on."""


class ImagesNotTaken(InvalidRequest):
    """The gallery was made of vectors, and takes no images."""


class InvalidText(InvalidRequest):
    """A text that cannot be searched with."""


class TextUnavailable(InvalidRequest):
    """The gallery cannot be searched with texts."""


class UnknownSource(InvalidRequest):
    """A source of queries that the gallery was not calibrated with."""


class InvalidHead(InvalidRequest):
    """The head of the request is not as HTTP wants it."""


class InvalidForm(InvalidRequest):
    """A form that ends before its closing boundary, or is not one."""


class UnsupportedMediaType(InvalidRequest):
    """A body of a kind that the path does not read."""


class OutdatedCursor(VouchError):
    """A cursor into a list of another bundle."""


class AccessError(VouchError):
    """The caller may not do that, or not now."""


class Unauthenticated(AccessError):
    """There is no API key, or not a good one."""


class Forbidden(AccessError):
    """The API key allows less than that."""


class MisdirectedRequest(AccessError):
    """The request was sent to a name that is not the service's."""


class QuotaExceeded(AccessError):
    """The API key may keep no more items or galleries."""


class RateLimited(AccessError):
    """Too many requests of this caller."""


class SearchesUsedUp(RateLimited):
    """The searches of this period that the API key allows have been made."""


class NotFound(VouchError):
    """The thing that the request names does not exist."""


class GalleryNotFound(NotFound):
    """No gallery of that name is served."""


class ItemNotFound(NotFound):
    """No item of that id is in the gallery."""


class SampleNotFound(NotFound):
    """No sample query of that id comes with the bundle."""


class QueryNotFound(NotFound):
    """The query is not, or no longer, known."""


class DecisionNotFound(NotFound):
    """No such decision was made on the gallery."""


class GroupNotFound(NotFound):
    """No such group of unknown queries, or its members have changed."""


class ShadowNotFound(NotFound):
    """No bundle is tried beside the one that is served."""


class IdentitiesUnavailable(VouchError):
    """The gallery has no usable labels."""


class FeedbackNotKept(VouchError):
    """There is nowhere to keep feedback, or nothing calibrated that it could refine."""


class PathNotFound(NotFound):
    """The service has nothing at that path."""


class MethodNotAllowed(VouchError):
    """The path exists, the method does not."""


class WriteError(VouchError):
    """A change of a gallery was not kept, and nothing of it."""


class WriteRefused(WriteError):
    """The gallery takes no changes, or not this one."""


class GalleryExists(WriteRefused):
    """The name of a gallery is taken."""


class KeyReused(WriteError):
    """The Idempotency-Key was sent before, with another request."""


class GallerySuperseded(WriteError):
    """Another bundle of the gallery has become current."""


class StorageBusy(WriteError):
    """Another process is writing to the gallery."""


class StorageFull(WriteError):
    """There is no room to keep the change."""


class StorageFailed(WriteError):
    """The disk does not take the change, or does not give it back."""


class LogDamaged(StorageFailed):
    """The log of a gallery's changes is not what was written to it."""


class KeysError(VouchError):
    """The file of API keys cannot be used."""


class KeysRequired(KeysError):
    """Others than this machine's could reach a service that asks for no key."""


class EncoderError(VouchError):
    """The encoder cannot be used."""


class EncoderContractError(EncoderError):
    """The ONNX file does not keep the contract of `model_store.encoder.onnx`."""


class ProviderUnavailable(EncoderError):
    """The requested execution provider does not run here."""


class EncoderStopped(EncoderError):
    """The encoder stopped while it worked, and is being started again."""


class EncodingFailed(EncoderError):
    """The encoder runs, but cannot embed this image."""


class Overloaded(VouchError):
    """As many requests as are taken at once are being worked on."""


class DeadlineExceeded(VouchError):
    """There was no answer within the time that a request may take."""


class UploadTooSlow(VouchError):
    """The body of the request arrived too slowly."""


class NotReady(VouchError):
    """The service cannot answer at the moment."""


class GalleryUnavailable(VouchError):
    """The engine that holds the gallery does not answer."""


class ChangeUnconfirmed(GalleryUnavailable):
    """It is unknown whether the change is kept."""


class ActivationRefused(VouchError):
    """The bundle cannot take the place of the one that is served, which is served on."""


class InternalError(VouchError):
    """Something went wrong in the service."""

"""The JSON that the service answers and reads; the client uses the same models.

::

    bundles      the bundle that answers, and the state of its calibration
    queries      the query: its uncertainty, outlier test and input
    search       options, results and verdicts
    texts        text queries
    filters      filters, and how the items that pass were found
    vectors      vectors in place of images, neighbours of other stores
    items        the items of a gallery
    maps         the items of a gallery in two dimensions
    curation     near duplicates and possible label errors
    changes      changes of a gallery
    galleries    galleries and their calibration reports
    calibrating  calibrations that a client starts
    created      galleries created, described, renamed and dropped; usage
    feedback     users' feedback on matches
    review       queries kept for review
    unknown      groups of queries without a match
    shadow       comparisons of a shadow bundle with the served bundle
    operations   liveness and readiness
    problems     errors in the format of RFC 9457
    reasons      codes and parameters of reasons, for programs
    requests     the base class of requests
    keywords     search options as Python keyword arguments
"""

from model_store.verdicts import CaseReason
from service.schemas.bundles import (
    Activation,
    BundleList,
    BundleState,
    CalibrationState,
    CalibrationStatus,
)
from service.schemas.calibrating import CalibrationRun, CalibrationWanted
from service.schemas.changes import BatchItemWritten, BatchWritten, ItemChange, ItemWritten
from service.schemas.created import (
    GalleryChange,
    GalleryDropped,
    GalleryRename,
    GalleryUsage,
    NewGallery,
    SearchUsage,
    Usage,
)
from service.schemas.curation import (
    ItemWithDuplicates,
    LabelErrorList,
    NearDuplicateList,
    NearItem,
    PossibleLabelError,
)
from service.schemas.feedback import (
    Decision,
    DecisionKind,
    DecisionList,
    ErrorsOverTime,
    FeedbackAnswer,
    FeedbackCorrection,
    FeedbackRequest,
    FeedbackSummary,
    ItemOfQuery,
)
from service.schemas.filters import Explanation, FilterText
from service.schemas.galleries import (
    AbsentState,
    AdoptedShare,
    CalibrationReport,
    DriftReport,
    EncoderState,
    Facet,
    FacetList,
    FacetValue,
    GalleryDetail,
    GalleryList,
    GalleryName,
    GalleryOutcome,
    LabelList,
    LevelPromise,
    MatchPromise,
    OperatingPoint,
    OperatingPointAnswer,
    OperatorDecision,
    OutcomeLine,
    ReliabilityBin,
    ResultSetOutcome,
    Sample,
    TextState,
)
from service.schemas.items import ItemDetail, ItemList
from service.schemas.maps import GalleryMap, MapColour, MapItem, MapItems
from service.schemas.operations import Live, ProviderShare, Ready, ReadyGallery
from service.schemas.problems import FieldError, Problem
from service.schemas.queries import (
    OutOfDistribution,
    PictureState,
    Query,
    QueryImage,
    QueryText,
    Uncertainty,
)
from service.schemas.review import (
    CaseForgotten,
    CaseList,
    CaseState,
    DecisionsImported,
    ExportFormat,
    FoundItem,
    ImportProblem,
    LabelStudioTasks,
    LeasedCase,
    LeaseEnded,
    LeaseRequest,
    Leases,
    ReviewCase,
    ReviewCount,
    ReviewSummary,
)
from service.schemas.search import (
    AbsentShare,
    Alpha,
    AssessmentAnswer,
    BatchAnswer,
    BatchItem,
    CacheOutcome,
    EmbeddingAnswer,
    ListOptions,
    OnUncertain,
    Quality,
    QualityHint,
    Result,
    ResultSet,
    RollUp,
    SearchAnswer,
    SearchOptions,
    SearchRequest,
    SetItem,
    ShareOrigin,
    SimilarAnswer,
)
from service.schemas.shadow import (
    ChangedAnswer,
    CountedShare,
    OutlierChange,
    ProbabilityChange,
    ReasonCount,
    SaidAnswer,
    ShadowReport,
    ShadowRequest,
    VerdictChange,
)
from service.schemas.texts import TextSearchRequest
from service.schemas.unknown import (
    AskedOn,
    Enrolled,
    EnrolledItem,
    EnrolRequest,
    GroupSize,
    UnknownGroup,
    UnknownGroups,
    UnknownMember,
)
from service.schemas.vectors import (
    DecidedNeighbour,
    DecisionAnswer,
    DecisionRequest,
    Neighbour,
    VectorFields,
    VectorSearchRequest,
)

__all__ = [
    "AbsentShare",
    "AbsentState",
    "Activation",
    "AdoptedShare",
    "Alpha",
    "AskedOn",
    "AssessmentAnswer",
    "BatchAnswer",
    "BatchItem",
    "BatchItemWritten",
    "BatchWritten",
    "BundleList",
    "BundleState",
    "CacheOutcome",
    "CalibrationReport",
    "CalibrationRun",
    "CalibrationState",
    "CalibrationStatus",
    "CalibrationWanted",
    "CaseForgotten",
    "CaseList",
    "CaseReason",
    "CaseState",
    "ChangedAnswer",
    "CountedShare",
    "DecidedNeighbour",
    "Decision",
    "DecisionAnswer",
    "DecisionKind",
    "DecisionList",
    "DecisionRequest",
    "DecisionsImported",
    "DriftReport",
    "EmbeddingAnswer",
    "EncoderState",
    "EnrolRequest",
    "Enrolled",
    "EnrolledItem",
    "ErrorsOverTime",
    "Explanation",
    "ExportFormat",
    "Facet",
    "FacetList",
    "FacetValue",
    "FeedbackAnswer",
    "FeedbackCorrection",
    "FeedbackRequest",
    "FeedbackSummary",
    "FieldError",
    "FilterText",
    "FoundItem",
    "GalleryChange",
    "GalleryDetail",
    "GalleryDropped",
    "GalleryList",
    "GalleryMap",
    "GalleryName",
    "GalleryOutcome",
    "GalleryRename",
    "GalleryUsage",
    "GroupSize",
    "ImportProblem",
    "ItemChange",
    "ItemDetail",
    "ItemList",
    "ItemOfQuery",
    "ItemWithDuplicates",
    "ItemWritten",
    "LabelErrorList",
    "LabelList",
    "LabelStudioTasks",
    "LeaseEnded",
    "LeaseRequest",
    "LeasedCase",
    "Leases",
    "LevelPromise",
    "ListOptions",
    "Live",
    "MapColour",
    "MapItem",
    "MapItems",
    "MatchPromise",
    "NearDuplicateList",
    "NearItem",
    "Neighbour",
    "NewGallery",
    "OnUncertain",
    "OperatingPoint",
    "OperatingPointAnswer",
    "OperatorDecision",
    "OutOfDistribution",
    "OutcomeLine",
    "OutlierChange",
    "PictureState",
    "PossibleLabelError",
    "ProbabilityChange",
    "Problem",
    "ProviderShare",
    "Quality",
    "QualityHint",
    "Query",
    "QueryImage",
    "QueryText",
    "Ready",
    "ReadyGallery",
    "ReasonCount",
    "ReliabilityBin",
    "Result",
    "ResultSet",
    "ResultSetOutcome",
    "ReviewCase",
    "ReviewCount",
    "ReviewSummary",
    "RollUp",
    "SaidAnswer",
    "Sample",
    "SearchAnswer",
    "SearchOptions",
    "SearchRequest",
    "SearchUsage",
    "SetItem",
    "ShadowReport",
    "ShadowRequest",
    "ShareOrigin",
    "SimilarAnswer",
    "TextSearchRequest",
    "TextState",
    "Uncertainty",
    "UnknownGroup",
    "UnknownGroups",
    "UnknownMember",
    "Usage",
    "VectorFields",
    "VectorSearchRequest",
    "VerdictChange",
]

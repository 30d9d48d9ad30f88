"""Settings of the service: ``VOUCH_*`` environment variables, and nothing else reads them."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

from limits import RateLimitItem, parse_many
from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from model_store.bundles.directory import KEPT_BUNDLES
from model_store.feedback.cases import CaseReason
from model_store.gallery import MilvusAccess
from model_store.images import ImageLimits
from model_store.images.budget import DecodingBudget
from model_store.installation import how_to_install
from model_store.processors import ProviderChoice, usable_processors
from service.decoding.sandbox import SandboxMode


def parse_rate(text: str) -> RateLimitItem:
    """Read ``600/minute`` or ``5 per 10 second``; a ValueError that says so for anything else."""
    try:
        rates = parse_many(text)
    except ValueError:
        rates = []
    if len(rates) != 1 or rates[0].amount < 1:
        raise ValueError(f"must be requests and a period, such as 600/minute, not {text!r}")
    return rates[0]


def _check_rate(text: str) -> str:
    parse_rate(text)
    return text


RateText = Annotated[str, AfterValidator(_check_rate)]
"""A rate as people write it, known to be one."""


def _check_otlp_endpoint(url: str) -> str:
    """Refuse what no traces can be sent to, or by."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    try:
        import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise ValueError(f"needs OpenTelemetry. {how_to_install('telemetry')}") from error
    return url


def _check_redis_url(url: SecretStr) -> SecretStr:
    """Refuse what cannot be Redis, without repeating it: it may hold a password."""
    if not url.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must begin with redis://, rediss:// or unix://")
    return url


def _check_origin(text: str) -> str:
    """Refuse what is no origin, and would be something else in a header."""
    if not re.fullmatch(r"https?://(\*\.)?[\w.-]+(:\d+)?", text, re.ASCII):
        raise ValueError(f"must be an origin, such as https://images.example, not {text!r}")
    return text


ImageKept = Literal["none", "thumbnail", "original"]
"""The part of an image that is kept for reviewers."""

Origin = Annotated[str, AfterValidator(_check_origin)]


def _check_record_url(text: str) -> str:
    """Refuse what a browser would not open, or could be led elsewhere by an item."""
    if not re.match(r"https?://[^\s/{}]+/", text):
        raise ValueError(
            f"must begin with http(s)://host/, such as https://a.example/{{id}}: {text!r}"
        )
    return text


RecordUrl = Annotated[str, AfterValidator(_check_record_url)]
"""The address of an item's record, with ``{id}``, ``{label}`` or ``{key}`` of its metadata."""


def _part(n: int, which: int, n_parts: int) -> int:
    """Return one part of ``n``, at least 1; none where there is nothing to share."""
    return n and max(1, n // n_parts + (which < n % n_parts))


class Settings(BaseSettings):
    """Read once at the start and passed on; never imported."""

    model_config = SettingsConfigDict(
        env_prefix="VOUCH_",
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    bundle: Path = Field(
        Path("bundles/digits"),
        description="A bundle, or a directory of bundles with a CURRENT. The option may be given "
        "several times.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 for any free one.")
    tls_cert: Path | None = Field(
        None, description="Certificates in PEM, to be asked by HTTPS; left out: by HTTP."
    )
    tls_key: Path | None = Field(
        None, description="Their private key, where it is not in the same file."
    )
    redis_url: Annotated[SecretStr, AfterValidator(_check_redis_url)] | None = Field(
        None, description="Where predictive distributions are cached; left out: in this process."
    )
    redis_timeout_s: float = Field(
        0.1, gt=0, description="After which Redis is not waited for; it must beat encoding anew."
    )
    cache_ttl_s: int = Field(86_400, gt=0, description="Life of an entry in Redis, seconds.")
    cache_secret: SecretStr | None = Field(
        None,
        min_length=16,
        description="Of all replicas, 16 characters or more: entries in Redis that were made "
        "without it are not believed.",
    )
    cache_bytes: int = Field(
        64 * 2**20, ge=0, description="Bound of the cache in this process; 0 turns it off."
    )
    milvus_uri: str | None = Field(
        None, description="Where galleries in Milvus are found. [default: what the bundle names]"
    )
    milvus_token: SecretStr | None = Field(
        None, description="What Milvus is to see: user:password, or an API key."
    )
    milvus_log: SecretStr | None = Field(
        None,
        description="The PostgreSQL that keeps the log of changes of galleries in Milvus, for "
        "services on several machines: postgresql://user:password@host/database. [default: a file "
        "beside the bundles]",
    )
    milvus_timeout_s: float = Field(5.0, gt=0, description="After which Milvus is not waited for.")
    provider: ProviderChoice = Field(
        "auto",
        description="auto takes CUDA where there is a GPU, else the CPU; what is named fails where "
        "it does not run.",
    )
    encoder_threads: int = Field(
        0, ge=0, description="CPU threads of one encoding; 0: all that the CPU quota allows."
    )
    workers: int = Field(
        3, ge=1, description="Threads that search and decide, of several all but one for a caller."
    )
    max_batch: int = Field(
        8, ge=1, description="Images encoded at once at most; as many as pay, without any change."
    )
    max_batch_pixels: int = Field(
        4_000_000, gt=0, description="Pixels encoded at once at most, at the encoder's input size."
    )
    pad_batches: bool = Field(
        False, description="Encode always max_batch images, blank ones if need be: for GPUs."
    )
    cuda_graphs: bool = Field(
        False,
        description="Record the kernels of each size of a batch and start them together, for "
        "encoders all of which runs on CUDA or TensorRT.",
    )
    processes: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = Field(
        1,
        description="Processes that answer, on one port; more than one need `redis_url`. auto: as "
        "many as pay, tried out at the start; with `encoders` `each`, as processors. Of workers, "
        "decoders, requests, connections and open galleries each has its part, at least one.",
    )
    encoders: Literal["shared", "each"] = Field(
        "shared",
        description="Of several processes: shared, one for all; each, one each on its processors.",
    )
    max_in_flight: int = Field(
        64,
        ge=1,
        description="Requests worked on at once, three quarters for one caller; more are refused "
        "with 503.",
    )
    max_connections: int = Field(
        1_000,
        ge=1,
        description="Connections held at once, at most three quarters of the files that may be "
        "open; the one idle for longest makes room for a new one.",
    )
    deadline_s: float = Field(
        10.0, gt=0, description="After which a request is given up with 504, upload included."
    )
    canary_period_s: float = Field(
        5.0, gt=0, description="Between canary queries, and between looks for another CURRENT."
    )
    compact_after: int = Field(
        10_000,
        ge=0,
        description="Items put into a gallery after which it is compacted into a new bundle; 0: "
        "only when asked to.",
    )
    recalibrate: bool = Field(
        True,
        description="Whether a calibration that went stale with its gallery, or that does not know "
        "its new labels, is fitted again from what its bundle keeps, by a process of vouch-build "
        "where that is installed.",
    )
    keep_bundles: int = Field(
        KEPT_BUNDLES,
        ge=1,
        description="Bundles of a gallery that are kept, the current one among them; older ones it "
        "was compacted from are removed, with their changes.",
    )
    galleries: Path | None = Field(
        None,
        description="Directory of the galleries that are created over HTTP; left out: none are.",
    )
    max_galleries: int = Field(1_000, ge=1, description="Created galleries that there may be.")
    open_galleries: int = Field(
        1_000,
        ge=1,
        description="Created galleries held open at once, fewer where few files may be open; the "
        "one idle for longest makes room.",
    )
    bundle_keys: tuple[Path, ...] = Field(
        (),
        description="Files of public keys, as JSON. Only bundles that one of them has signed are "
        "served; none: any bundle that is whole.",
    )
    signing_key: Path | None = Field(
        None, description="The private key that compacted bundles are signed with."
    )
    max_image_bytes: int = Field(
        ImageLimits().max_bytes, gt=0, description="Size of the largest image file."
    )
    max_image_pixels: int = Field(
        ImageLimits().max_pixels, gt=0, description="Width × height of the largest image."
    )
    decoders: int = Field(
        3,
        ge=0,
        description="Processes that decode images, of several all but one for a caller; 0: threads "
        "of this one instead.",
    )
    decoder_sandbox: SandboxMode = Field(
        "available",
        description="Whether the kernel confines decoders (seccomp, Landlock): required: or they "
        "do not start; available: as far as it can, see /readyz; off.",
    )
    decode_timeout_s: float = Field(
        DecodingBudget().cpu_s, gt=0, description="Of computing, for one image; past it: refused."
    )
    decoder_memory_bytes: int = Field(
        DecodingBudget().memory_bytes, gt=0, description="For one image; past it: refused."
    )
    max_batch_bytes: int = Field(
        100 * 2**20, gt=0, description="Size of the largest batch, all its images together."
    )
    feedback: Path | None = Field(
        None, description="File that keeps what users say of matches; left out: none is kept."
    )
    query_retention_s: int = Field(
        0,
        ge=0,
        description="Seconds for which an answered query can be decided on, where feedback is "
        "kept: its embedding is kept in that file, no image; 0: as long as it is cached.",
    )
    audit_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Share of answers `match` drawn at random for review, where feedback is kept; "
        "of all answers where `review_reasons` has random.",
    )
    review_reasons: tuple[CaseReason, ...] = Field(
        (),
        description="Which queries with images are kept in the file of feedback to be decided on, "
        'as JSON, of: ["ambiguous", "absent", "alien", "contradicted", "random"]; none, unless '
        "told.",
    )
    review_image: ImageKept = Field(
        "thumbnail",
        description="What is kept of their images: thumbnail, of 160 pixels and without metadata; "
        "original, the file as it was sent; none.",
    )
    review_retention_s: int = Field(
        2_592_000, gt=0, description="Seconds after which such a query is forgotten; 30 days."
    )
    review_cases: int = Field(10_000, ge=1, description="Such queries of a gallery at most.")
    review_bytes: int = Field(2**30, ge=0, description="Size of their images at most.")
    reviewers: int = Field(
        1, ge=1, le=9, description="Reviewers who have to agree before a decision on one counts."
    )
    shadow_share: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Share of the queries with images that a bundle in the shadow answers too, "
        "unless a request to start one says another.",
    )
    otlp_endpoint: Annotated[str, AfterValidator(_check_otlp_endpoint)] | None = Field(
        None, description="OpenTelemetry collector that traces are sent to; left out: none are."
    )
    keys: Path | None = Field(
        None, description="File of API keys, written by vouch-keys; left out: nobody needs one."
    )
    anonymous: bool = Field(
        False,
        description="Whether callers without a key are served where others than this machine's "
        "may reach the service, or where there are keys.",
    )
    published_host: str | None = Field(
        None,
        description="Address under which the outside reaches the service, where it is not `host`: "
        "that of the host that publishes a container's port.",
    )
    trusted_proxies: tuple[str, ...] = Field(
        (),
        description="Addresses and networks of proxies that are believed who asks "
        '(X-Forwarded-For, X-Forwarded-Proto), as JSON: ["10.0.0.7", "10.1.0.0/16"]; ["*"]: '
        "whoever connects.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Names that the service goes by beside those of this machine, as JSON: "
        '["search.example", "*.shop.example"]; ["*"]: any. [default: where no key is asked for on '
        "loopback, none; else any]",
    )
    rate_limit: RateText | None = Field(
        None,
        description="Requests of one caller in a period, such as 600/minute; left out: no limit.",
    )
    cors_origins: tuple[str, ...] = Field(
        (), description='Web origins that may call, as JSON: ["https://shop.example"].'
    )
    frame_ancestors: tuple[Origin, ...] = Field(
        (), description="Web origins whose pages may show the page in a frame, as JSON."
    )
    image_origins: tuple[Origin, ...] = Field(
        (),
        description="Web origins that the page may load `image_url` of items' metadata from, to "
        "show more than previews, and pictures of dropped links, as JSON.",
    )
    record_urls: dict[str, RecordUrl] = Field(
        {},
        description="Where the records of a gallery's items are, as JSON: "
        '{"shoes": "https://shop.example/shoes/{id}"}; {label} and keys of the metadata may stand '
        "there too.",
    )

    def part(self, which: int, n: int) -> Settings:
        """The settings of one of ``n`` processes: what is bounded is shared out among them.

        Calibrations are fitted again by the first alone; one process of `vouch-build` does.
        """
        shared = ("workers", "decoders", "max_in_flight", "max_connections", "open_galleries")
        parts = {name: _part(getattr(self, name), which, n) for name in shared}
        parts |= {"processes": n, "recalibrate": self.recalibrate and which == 0}
        part = self.model_copy(update=parts)
        own = part.own_processors
        threads = min(self.encoder_threads or own, own)
        return part.model_copy(update={"encoder_threads": threads}) if own else part

    @property
    def own_processors(self) -> int:
        """Processors for the encoder of this process and what answers beside it; 0 for all."""
        divided = self.encoders == "each" and self.processes != "auto"
        return max(1, usable_processors() // int(self.processes)) if divided else 0

    @property
    def milvus(self) -> MilvusAccess:
        """The address and token for galleries in Milvus, and where their changes are logged."""
        token, log = (
            secret.get_secret_value() if secret else None
            for secret in (self.milvus_token, self.milvus_log)
        )
        return MilvusAccess(self.milvus_uri, token, self.milvus_timeout_s, log)

    @property
    def compacts_after(self) -> int:
        """`compact_after`; 0 where a compacted bundle needs a signature and could have none."""
        return 0 if self.bundle_keys and self.signing_key is None else self.compact_after

    @property
    def recalibrates(self) -> bool:
        """`recalibrate`; false where a new bundle needs a signature and could have none."""
        return self.recalibrate and not (self.bundle_keys and self.signing_key is None)

    @property
    def image_limits(self) -> ImageLimits:
        """The limits beyond which an image is refused before decoding."""
        return ImageLimits(self.max_image_bytes, self.max_image_pixels)

    @property
    def decoding_budget(self) -> DecodingBudget:
        """The limits on what the decoding of one image may cost."""
        return DecodingBudget(self.decode_timeout_s, self.decoder_memory_bytes)

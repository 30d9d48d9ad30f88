"""Settings of the service. Only this module reads the ``VOUCH_*`` variables of the service."""

from __future__ import annotations

import logging
import re
from importlib import import_module
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from limits import RateLimitItem, parse_many
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
)

from model_store.bundles.directory import KEPT_BUNDLES
from model_store.bundles.signatures import Signing
from model_store.gallery.milvus.collection import MilvusAccess, check_address, check_log
from model_store.gallery.opening import DatabaseAccess
from model_store.gallery.postgres.database import PostgresAccess
from model_store.gallery.postgres.database import check_address as check_postgres
from model_store.images import ImageLimits
from model_store.images.decode import DecodingBudget
from model_store.installation import how_to_install
from model_store.machine import ProviderChoice
from model_store.messages import CaseReason
from model_store.programs import PREFIX
from model_store.text_values import (
    as_list,
    as_mapping,
    lower_scheme,
    passwords_in,
    require_no_user,
    split_address,
)
from service.decoding.sandbox import SandboxMode
from service.health_check import DEFAULT_HOST, DEFAULT_PORT, SERVICE_LINK

logger = logging.getLogger("service")


def parse_rate(text: str) -> RateLimitItem:
    """Read ``600/minute`` or ``5 per 10 second``; raise a ValueError for anything else."""
    try:
        rates = parse_many(text)
    except ValueError:
        rates = []
    if len(rates) != 1 or rates[0].amount < 1:
        raise ValueError("must be requests and a period, such as 600/minute")
    return rates[0]


def _check_rate(text: str) -> str:
    parse_rate(text)
    return text


_LEAST_CHARACTERS = 16
"""Minimum length of the secret that signs cache entries."""

RateText = Annotated[str, AfterValidator(_check_rate)]
"""A valid rate, such as ``600/minute``."""


def _check_otlp_endpoint(url: str) -> str:
    """Check the collector's address, and that OpenTelemetry is installed."""
    url = lower_scheme(url)
    require_no_user(split_address(url, ("http", "https")), "OTEL_EXPORTER_OTLP_HEADERS")
    try:
        import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise ValueError(f"needs OpenTelemetry. {how_to_install('telemetry')}") from error
    return url


def _check_redis_url(url: SecretStr) -> SecretStr:
    """Check the address of Redis. Errors omit the address, which may contain a password."""
    text = url.get_secret_value()
    parts = split_address(text, ("redis", "rediss", "unix"))
    number = parts.path.removeprefix("/")
    if parts.scheme != "unix" and number and not number.isdecimal():
        raise ValueError("must end with the number of a database, such as redis://host:6379/0")
    redis, errors = import_module("redis.asyncio"), import_module("redis.exceptions")
    try:
        redis.ConnectionPool.from_url(text).make_connection()
    except (AttributeError, TypeError, ValueError, errors.RedisError):
        raise ValueError("has an unknown or invalid Redis option") from None
    return url


def _check_cache_secret(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < _LEAST_CHARACTERS:
        raise ValueError(f"must have at least {_LEAST_CHARACTERS} characters")
    return secret


def _check_milvus_uri(uri: str) -> str:
    check_address(uri)
    return uri


def _check_postgres_uri(uri: SecretStr) -> SecretStr:
    check_postgres(uri.get_secret_value())
    return uri


def _check_milvus_log(url: SecretStr) -> SecretStr:
    check_log(url.get_secret_value())
    return url


def _check_origin(text: str) -> str:
    """Check that a text is a web origin, because the service writes it into headers."""
    if not re.fullmatch(r"https?://(\*\.)?[\w.-]+(:\d+)?", text, re.ASCII):
        raise ValueError("must be an origin, such as https://images.example")
    return text


_PREFIX = re.compile(r"(/[\w.~-]+)+/?|/?", re.ASCII)
_OWN = {"v1", "page", "docs", "openapi.json", "static-offline-docs", "livez", "readyz", "metrics"}
_MAX_PREFIX = 200


def read_prefix(text: str) -> str:
    """Return a path prefix without its last slash.

    Raises
    ------
    ValueError : the text is not a path prefix, or begins with a path of the service.
    """
    if len(text) > _MAX_PREFIX or not _PREFIX.fullmatch(text) or "/.." in text:
        raise ValueError("must be a path, such as /vouch")
    if text.split("/")[1:2] and text.split("/")[1] in _OWN:
        raise ValueError("must not begin with a path of the service, such as /v1")
    return text.rstrip("/")


ImageKept = Literal["none", "thumbnail", "original"]
"""The stored version of an image that is kept for review."""

OnDrift = Literal["warn", "withhold"]
"""The effect of drift on the verdict `match`."""

Origin = Annotated[str, AfterValidator(_check_origin)]


EVERY = "*"
"""Value that stands for all proxies, origins or hosts."""


def _read_cors_origin(text: str) -> str:
    """Return an origin as browsers send it, in lower case; a page may have a scheme of an app."""
    if text == EVERY:
        return text
    origin = text.lower()
    if not re.fullmatch(r"[a-z][a-z\d+.-]*://(\[[\da-f:.]+\]|[\w.-]+)(:\d+)?", origin, re.ASCII):
        raise ValueError("must be an origin, such as https://shop.example, without a path, or *")
    return re.sub(r"^(https://.*):443$|^(http://.*):80$", r"\1\2", origin)


def _check_host(text: str) -> str:
    """Check that a text is a host name, the names below it, or an address."""
    if text == EVERY or re.fullmatch(r"(\*\.)?[\w-]+(\.[\w-]+)*\.?", text, re.ASCII):
        return text
    try:
        ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ValueError(
            "must be a host name without scheme and port, such as search.example, or *"
        ) from None
    return text


def _without_brackets(text: str) -> str:
    return text.removeprefix("[").removesuffix("]")


def _read_proxy(text: str) -> str:
    """Return an address or network in the form that the proxy middleware compares with."""
    if text == EVERY:
        return text
    try:
        if "/" in text:
            return str(ip_network(text, strict=False))  # host bits, as in 10.1.2.3/16, are dropped
        address = ip_address(text)
    except ValueError:
        raise ValueError("must be an address or network, such as 10.0.0.7 or 10.1.0.0/16") from None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


Proxy = Annotated[str, AfterValidator(_read_proxy)]
CorsOrigin = Annotated[str, AfterValidator(_read_cors_origin)]
ListeningHost = Annotated[str, AfterValidator(_without_brackets)]
HostPattern = Annotated[str, AfterValidator(_check_host)]


def _check_record_url(text: str) -> str:
    """Check that a URL template has a fixed host, so that no item can change the host."""
    if not re.match(r"https?://[^\s/{}]+/", text):
        raise ValueError("must begin with http(s)://host/, such as https://a.example/{id}")
    return text


RecordUrl = Annotated[str, AfterValidator(_check_record_url)]
"""Template of the address of an item's record, with ``{id}``, ``{label}`` or a metadata key."""


Item = TypeVar("Item")
List = Annotated[tuple[Item, ...], NoDecode, BeforeValidator(as_list)]
"""A list, written as values with commas between them or as JSON."""


def _secrets_problem(folder: Path) -> str:
    """Describe what is wrong with a folder of secrets; an empty text if the folder is valid.

    The description contains no secret. Without this check, pydantic would ignore unknown or
    unreadable files in the folder.
    """
    own = {f"{PREFIX.lower()}{name}" for name in Settings.model_fields}
    try:
        if not folder.is_dir():
            return "must be a directory with a file for each secret"
        of_ours = [one for one in folder.iterdir() if one.name.lower().startswith(PREFIX.lower())]
    except (OSError, ValueError):
        return "must be a directory that the service can read, with a file for each secret"
    if unknown := sorted(path.name for path in of_ours if path.name.lower() not in own):
        return f"{folder} has files that name no setting: {', '.join(unknown)}"
    for path in sorted(of_ours):
        try:
            if not path.is_file():
                return f"{path} must be a file"
            path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return f"{path} must be a text file in UTF-8 that the service can read"
    return ""


def _check_secrets(folder: Path) -> Path:
    if problem := _secrets_problem(folder):
        raise ValueError(problem)
    return folder


DAY_S = 86_400
"""Maximum of timeouts and periods, in seconds: an infinite `drain_s` would never end."""

DEFAULT_GALLERIES = Path("galleries")
"""Directory of created galleries, below the working directory, of a service without bundles."""


class Settings(BaseSettings):
    """The settings of one service, read once at the start.

    Each setting without a default value has an example in the syntax of environment variables.

    Examples
    --------
    >>> os.environ["VOUCH_RATE_LIMIT"] = "600/minute"
    >>> os.environ["VOUCH_CORS_ORIGINS"] = "https://a.example,https://b.example"
    >>> Settings(port=9000).cors_origins
    ('https://a.example', 'https://b.example')
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - none is read
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - its folder is fixed
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read options, then variables, then files in the folder `secrets_dir`."""
        folder = {**env_settings(), **init_settings()}.get("secrets_dir")
        if not folder or _secrets_problem(Path(folder)):  # refused by `_check_secrets`
            return init_settings, env_settings
        return init_settings, env_settings, SecretsSettingsSource(settings_cls, folder)

    bundle: List[Path] = Field(
        (),
        min_length=1,  # of a list that is given: an empty text may be a variable of a script
        validate_default=False,
        description="Bundles to serve: each is a bundle, or a directory of bundles with a file "
        "CURRENT. [default: only the galleries in `galleries`]",
        examples=["bundles/photographs"],
    )
    galleries: Path | None = Field(
        None,
        description="Directory for galleries that are created over HTTP or on the page. [default: "
        f"without `bundle`, {DEFAULT_GALLERIES} in the working directory; with `bundle`, galleries "
        "cannot be created]",
        examples=["/srv/vouch/galleries"],
    )
    max_galleries: int = Field(
        1_000, ge=1, description="Maximum number of galleries created over HTTP."
    )
    open_galleries: int = Field(
        1_000,
        ge=1,
        description="Maximum number of created galleries that are open at the same time. Opening "
        "another gallery closes the gallery that was idle longest. If the limit on open files is "
        "low, fewer galleries are open.",
    )
    compact_after: int = Field(
        10_000,
        ge=0,
        description="Number of written items after which the service compacts a gallery into a "
        "new bundle; 0: only on request.",
    )
    keep_bundles: int = Field(
        KEPT_BUNDLES,
        ge=1,
        description="Number of bundles to keep for each gallery, including the current bundle. "
        "Older bundles that were compacted or changed are removed, together with their changes.",
    )
    recalibrate: bool = Field(
        True,
        description="Recalibrate a gallery if its calibration is stale or lacks new labels. The "
        "calibration queries come from the gallery's bundle. The extra `build` must be installed "
        "beside the service.",
    )
    bundle_keys: List[Path] = Field(
        (),
        description="Files of public keys. The service opens only bundles with a signature of one "
        "of these keys. [default: all complete bundles]",
        examples=["/etc/vouch/publisher.pub"],
    )
    signing_key: Path | None = Field(
        None,
        description="File of the private key that signs the bundles that the service publishes.",
        examples=["/etc/vouch/compaction.key"],
    )
    shadow_share: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Default share of the image queries that a shadow bundle also answers.",
    )
    secrets_dir: Annotated[Path, AfterValidator(_check_secrets)] | None = Field(
        None,
        description="Directory with a file for each secret setting, named like its variable: "
        "vouch_cache_secret, vouch_milvus_token. A variable takes precedence.",
        examples=["/run/secrets"],
    )

    host: ListeningHost = Field(
        DEFAULT_HOST, description="Address to listen on; :: listens on all IPv4 and IPv6 addresses."
    )
    port: int = Field(
        DEFAULT_PORT, ge=0, le=65535, description="Port to listen on; 0 chooses a free port."
    )
    published_host: str | None = Field(
        None,
        description="Address at which clients reach the service, if it is not `host`. For a "
        "container: the address of the machine that publishes its port.",
        examples=["192.0.2.10"],
    )
    tls_cert: Path | None = Field(
        None,
        description="PEM file of certificates for HTTPS. [default: HTTP]",
        examples=["/etc/vouch/cert.pem"],
    )
    tls_key: Path | None = Field(
        None,
        description="PEM file of the private key, if the file `tls_cert` does not contain the key.",
        examples=["/etc/vouch/key.pem"],
    )
    allowed_hosts: List[HostPattern] = Field(
        (),
        description="Host names that requests may use, such as search.example,*.shop.example; * "
        "allows all. The names of this machine are always allowed. [default: all host names; if "
        "the service has no keys and listens on loopback, only the names of this machine]",
        examples=["search.example,*.shop.example"],
    )
    trusted_proxies: List[Proxy] = Field(
        (),
        description="Proxies whose X-Forwarded-For, -Proto and -Prefix are trusted: addresses and "
        "networks, such as 10.0.0.7,10.1.0.0/16; * trusts every client.",
        examples=["10.0.0.7,10.1.0.0/16"],
    )
    root_path: Annotated[str, AfterValidator(read_prefix)] = Field(
        "",
        description="Path prefix under which a proxy publishes the service, such as /vouch. "
        "X-Forwarded-Prefix of a trusted proxy replaces it. [default: none]",
        examples=["/vouch"],
    )

    keys: Path | None = Field(
        None,
        description="File of API keys, written by vouch-keys. [default: no key is needed]",
        examples=["/etc/vouch/keys.json"],
    )
    anonymous: bool = Field(
        False,
        description="Serve callers without a key, even if there are keys or if other machines can "
        "reach the service.",
    )
    rate_limit: RateText | None = Field(
        None,
        description="Maximum number of requests of one caller in a period, such as 600/minute. "
        "[default: no limit]",
        examples=["600/minute"],
    )

    cors_origins: List[CorsOrigin] = Field(
        (),
        description="Web origins that may call the API, such as https://shop.example; * allows "
        "all origins.",
        examples=["https://shop.example"],
    )
    frame_ancestors: List[Origin] = Field(
        (),
        description="Web origins that may show the service's page in a frame.",
        examples=["https://shop.example"],
    )
    image_origins: List[Origin] = Field(
        (),
        description="Web origins from which the service's page may load images, for `image_url` "
        "in the metadata of items and for dropped links.",
        examples=["https://images.example"],
    )
    record_urls: Annotated[dict[str, RecordUrl], NoDecode, BeforeValidator(as_mapping)] = Field(
        {},
        description="Links to the items of a gallery in another system, such as "
        "shoes=https://shop.example/shoes/{id}. {label} and metadata keys are replaced too.",
        examples=["shoes=https://shop.example/shoes/{id}"],
    )

    max_in_flight: int = Field(
        64,
        ge=1,
        description="Maximum number of concurrent requests; further requests get 503. One caller "
        "can have at most three quarters of all concurrent requests.",
    )
    max_connections: int = Field(
        1_000,
        ge=1,
        description="Maximum number of open connections, at most three quarters of the limit on "
        "open files. At this limit, a new connection replaces an idle connection; if no "
        "connection is idle, the service closes the new connection.",
    )
    deadline_s: float = Field(
        10.0,
        gt=0,
        le=DAY_S,
        description="Timeout for an answer in seconds, from the end of the upload. After this "
        "time, the client gets a 504.",
    )
    min_upload_bytes_per_s: float = Field(
        8_000,
        gt=0,
        allow_inf_nan=False,
        description="Minimum average rate of an upload in bytes per second, after 10 seconds. A "
        "slower upload gets 408.",
    )
    keep_alive_s: int = Field(
        75,
        ge=1,
        description="Timeout of idle connections in seconds. Set a timeout longer than the "
        "timeout of your proxy: nginx and AWS 60, Azure 240, Google 600.",
    )
    drain_s: float = Field(
        0,
        ge=0,
        le=DAY_S,
        description="Seconds for which the service still accepts connections after SIGTERM. "
        "/readyz answers 503 during this time, so that load balancers choose another replica. A "
        "second signal ends the service immediately.",
    )
    max_image_bytes: int = Field(
        ImageLimits().max_bytes, gt=0, description="Maximum size of an image file in bytes."
    )
    max_image_pixels: int = Field(
        ImageLimits().max_pixels, gt=0, description="Maximum width × height of an image in pixels."
    )
    max_batch_bytes: int = Field(
        100 * 2**20, gt=0, description="Maximum total size of the images in a batch in bytes."
    )

    provider: ProviderChoice = Field(
        "auto",
        description="Execution provider that runs the encoder. auto uses CUDA if there is a GPU, "
        "otherwise the CPU. If another value is not available, the service does not start.",
    )
    encoder_threads: int = Field(
        0, ge=0, description="CPU threads for encoding one batch; 0 uses the whole CPU quota."
    )
    max_batch: int = Field(
        8,
        ge=1,
        description="Maximum batch size of the encoder. The service measures which sizes leave "
        "embeddings bit-identical, and uses the fastest of these sizes.",
    )
    max_batch_pixels: int = Field(
        4_000_000,
        gt=0,
        description="Maximum number of pixels in a batch, at the encoder's input size.",
    )
    pad_batches: bool = Field(
        False, description="Fill each batch up to `max_batch` with blank images, for GPUs."
    )
    cuda_graphs: bool = Field(
        False,
        description="Run the encoder as recorded CUDA graphs, one for each batch size. The whole "
        "encoder must run on CUDA or TensorRT.",
    )

    processes: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of worker processes on one port. Each process has its own encoder, "
        "decoders, search threads and limits. Several processes need `redis_url`.",
    )
    workers: int = Field(
        3, ge=1, description="Number of search threads; one client can use all threads except one."
    )
    decoders: int = Field(
        3,
        ge=0,
        description="Number of processes that decode images; one client can use all processes "
        "except one. 0 decodes in threads of the service.",
    )
    decoder_sandbox: SandboxMode = Field(
        "available",
        description="Sandbox of the decoders, by the Linux kernel (seccomp, Landlock). required: "
        "the service does not start without the whole sandbox. available: use the parts that the "
        "kernel has; /readyz lists them. off: no sandbox.",
    )
    decode_timeout_s: float = Field(
        DecodingBudget().cpu_s,
        gt=0,
        le=DAY_S,
        description="Maximum CPU time for decoding an image in seconds.",
    )
    decoder_memory_bytes: int = Field(
        DecodingBudget().memory_bytes,
        gt=0,
        description="Maximum memory for decoding an image in bytes.",
    )

    redis_url: Annotated[SecretStr, AfterValidator(_check_redis_url)] | None = Field(
        None,
        description="Redis that caches predictive distributions: redis://, rediss:// or unix://. "
        "[default: a cache in this process]",
        examples=["redis://cache.example:6379/0"],
    )
    redis_timeout_s: float = Field(
        0.1,
        gt=0,
        le=DAY_S,
        description="Redis timeout in seconds; keep it below the time to encode an image.",
    )
    cache_ttl_s: int = Field(
        86_400, gt=0, description="Lifetime of a cache entry in Redis in seconds."
    )
    cache_secret: Annotated[SecretStr, AfterValidator(_check_cache_secret)] | None = Field(
        None,
        description="Secret that signs cache entries in Redis, 16 characters or more; the same "
        "for all replicas. Entries without a valid signature are ignored.",
        examples=["use-sixteen-or-more-random-characters"],
    )
    cache_bytes: int = Field(
        64 * 2**20,
        ge=0,
        description="Maximum size of the cache in this process in bytes; 0 turns it off.",
    )

    postgres_uri: Annotated[SecretStr, AfterValidator(_check_postgres_uri)] | None = Field(
        None,
        description="PostgreSQL database, for galleries in PostgreSQL: "
        "postgresql://user:password@host/database. The address in a bundle is ignored. [default: "
        "none]",
        examples=["postgresql://vouch:password@db.example/vouch"],
    )
    postgres_timeout_s: float = Field(
        5.0, gt=0, le=DAY_S, description="PostgreSQL timeout in seconds."
    )
    milvus_uri: Annotated[str, AfterValidator(_check_milvus_uri)] | None = Field(
        None,
        description="Address of Milvus, for galleries in Milvus. The address in a bundle is "
        "ignored. [default: none]",
        examples=["http://milvus.example:19530"],
    )
    milvus_token: SecretStr | None = Field(
        None,
        description="Milvus credentials: user:password, or an API key.",
        examples=["vouch:password"],
    )
    milvus_log: Annotated[SecretStr, AfterValidator(_check_milvus_log)] | None = Field(
        None,
        description="PostgreSQL database for the change log of galleries in Milvus, if the "
        "service runs on several machines: postgresql://user:password@host/database. [default: a "
        "file beside the bundles]",
        examples=["postgresql://vouch:password@db.example/vouch"],
    )
    milvus_timeout_s: float = Field(5.0, gt=0, le=DAY_S, description="Milvus timeout in seconds.")

    feedback: Path | None = Field(
        None,
        description="SQLite file for feedback and reviews. [default: feedback is not stored]",
        examples=["/srv/vouch/feedback.sqlite3"],
    )
    query_retention_s: int = Field(
        0,
        ge=0,
        description="Seconds for which reviewers can decide on a query. During this time, the file "
        "`feedback` stores the query's embedding, but no image. 0: reviewers can decide only "
        "while the query is in the cache.",
    )
    audit_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Share of the answers with `match` that are drawn at random for review. If "
        "`review_reasons` contains random, answers with other verdicts are drawn too. Needs "
        "`feedback`. Doubtful answers are drawn more often than other answers. Each answer is "
        "drawn with a probability of at least half of this share.",
    )
    on_drift: OnDrift = Field(
        "warn",
        description="Effect of drift. There is drift if recent queries of a caller differ from the "
        "calibration queries. warn: the verdicts of this caller have no guarantee. withhold: this "
        "caller gets no `match`.",
    )
    review_reasons: List[CaseReason] = Field(
        (),
        description="Kinds of image queries to keep for review: ambiguous, absent, alien, "
        "contradicted, random. Needs `feedback`. [default: none]",
        examples=["ambiguous,absent"],
    )
    review_image: ImageKept = Field(
        "thumbnail",
        description="Image that is kept with a query for review: thumbnail (160 pixels, no "
        "metadata), original (the uploaded file), or none.",
    )
    review_retention_s: int = Field(
        2_592_000, gt=0, description="Seconds for which a query is kept for review."
    )
    review_cases: int = Field(
        10_000, ge=1, description="Maximum number of queries kept for review in a gallery."
    )
    review_bytes: int = Field(
        2**30, ge=0, description="Maximum total size of the images kept for review, in bytes."
    )
    reviewers: int = Field(
        1, ge=1, le=9, description="Number of reviewers who must agree before a decision counts."
    )

    canary_period_s: float = Field(
        5.0,
        gt=0,
        le=DAY_S,
        description="Seconds between test queries (canaries) to each gallery. The file CURRENT is "
        "checked for a new bundle at the same interval.",
    )
    otlp_endpoint: Annotated[str, AfterValidator(_check_otlp_endpoint)] | None = Field(
        None,
        description="OpenTelemetry collector for traces. [default: no traces]",
        examples=["http://collector.example:4318"],
    )

    @field_validator("port", mode="before")
    @classmethod
    def _without_service_link(cls, port: object) -> object:
        """Ignore the VOUCH_PORT that Kubernetes sets in pods for a Service named vouch."""
        if isinstance(port, str) and SERVICE_LINK.match(port):
            logger.warning(
                "VOUCH_PORT=%s is an address of a Kubernetes Service, not a port. Port %d is "
                "used. Set enableServiceLinks: false, or --port.",
                port,
                DEFAULT_PORT,
            )
            return DEFAULT_PORT
        return port

    @property
    def secrets(self) -> frozenset[str]:
        """Texts that no message may contain: secret settings, and passwords in these settings."""
        values = (getattr(self, name) for name in type(self).model_fields)
        texts = [value.get_secret_value() for value in values if isinstance(value, SecretStr)]
        return frozenset(texts).union(*map(passwords_in, texts))

    @property
    def database(self) -> DatabaseAccess:
        """The addresses, secrets and timeouts for galleries in databases."""
        token, log, uri = (
            secret.get_secret_value() if secret else None
            for secret in (self.milvus_token, self.milvus_log, self.postgres_uri)
        )
        return DatabaseAccess(
            MilvusAccess(self.milvus_uri, token, self.milvus_timeout_s, log),
            PostgresAccess(uri, self.postgres_timeout_s),
        )

    @property
    def signing(self) -> Signing:
        """How the service signs the bundles that it publishes."""
        return Signing(self.signing_key, bool(self.bundle_keys))

    @property
    def image_limits(self) -> ImageLimits:
        """The limits on bytes and pixels; a larger image is refused before decoding."""
        return ImageLimits(self.max_image_bytes, self.max_image_pixels)

    @property
    def decoding_budget(self) -> DecodingBudget:
        """The limits on CPU time and memory for decoding one image."""
        return DecodingBudget(self.decode_timeout_s, self.decoder_memory_bytes)


_FIRST_OF_GROUP = {
    "bundle": "Bundles and galleries",
    "host": "Address",
    "keys": "Access",
    "cors_origins": "Web pages",
    "max_in_flight": "Limits",
    "provider": "Encoder",
    "processes": "Processes",
    "redis_url": "Cache",
    "postgres_uri": "Databases",
    "feedback": "Feedback and review",
    "canary_period_s": "Monitoring",
}


def settings_in_groups() -> dict[str, list[str]]:
    """Return the names of the settings by group title, in the order of the help."""
    groups: dict[str, list[str]] = {}
    title = ""
    for name in Settings.model_fields:
        title = _FIRST_OF_GROUP.get(name, title)
        groups.setdefault(title, []).append(name)
    return groups

"""Places that store bundles: a local disk, a bucket, and a repository of the Hugging Face Hub.

A bucket, or a prefix in a bucket, has the layout of a directory of bundles: ``<id>/…`` and
`CURRENT`. The manifest is written after the other files, and `CURRENT` last, so no reader finds an
incomplete bundle. Credentials come from the usual environment variables of each cloud.

A repository has the bundle's files, and the model card as `README.md`. A push writes one commit,
and a pull reads one commit, so a pull never gets an incomplete bundle. The token comes from the
variable ``HF_TOKEN``, or from ``hf auth login``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index_builder.exchange.pull import MOST_BYTES, BundlePlace, pull
from index_builder.progress import track
from index_builder.storage.bucket import client_config, redacted
from index_builder.storage.urls import BUCKETS
from model_store.bundles.directory import CURRENT_FILE, is_bundle_id, locate
from model_store.bundles.manifest import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Manifest,
    file_names,
    parse_manifest,
)
from model_store.errors import BundleError, TransferError
from model_store.installation import how_to_install

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from obstore.store import RetryConfig


_CHUNK = 2**20
_LONGEST = timedelta(days=1)
"""Timeout for one file."""


class BundleBucket:
    """A directory of bundles in a bucket, or a single bundle.

    Parameters
    ----------
    url : ``s3://bucket/prefix``, or ``gs://`` or ``az://``.

    Raises
    ------
    TransferError : obstore is not installed, or the environment lacks a variable.
    """

    def __init__(self, url: str) -> None:
        try:
            import obstore  # noqa: PLC0415 - an extra
            from obstore import exceptions, store  # noqa: PLC0415
        except ImportError as error:
            raise TransferError(
                f"Reaching {url} needs obstore. {how_to_install('remote')}"
            ) from error
        self._url, self._obstore, self._errors = url, obstore, exceptions
        # A large file may take hours, but an unreachable service must fail within seconds.
        client = client_config(10, _LONGEST)
        patience: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
        with self._reached("be opened"):
            self._store = store.from_url(url, client_options=client, retry_config=patience)

    def read(self, name: str) -> bytes | None:
        """Return a file of the bundle, or None if the file does not exist."""
        return self._read(self._bundle + name)

    def fetch(self, name: str, size: int, directory: Path) -> None:
        """Copy a file of the bundle to ``directory``."""
        written = 0
        with self._reached("be read"):
            found = self._obstore.get(self._store, self._bundle + name)
            with (directory / name).open("wb") as file:
                for chunk in found.stream(min_chunk_size=_CHUNK):
                    written += file.write(chunk)
                    if written > size:
                        raise TransferError(
                            f"{name} at {self._url} is larger than its size in the manifest. "
                            "Push the bundle again."
                        )

    def put(self, directory: Path, manifest: Manifest) -> str:
        """Copy a bundle into the bucket, and make it the current bundle."""
        prefix = f"{manifest.id}/"
        with self._reached("be written"):
            there = {
                one["path"]: one["size"]
                for page in self._obstore.list(self._store, prefix)
                for one in page
            }
            for name in track(sorted(manifest.files), "sending", len(manifest.files)):
                # Uploads are atomic, so an existing file of the right size is complete.
                if there.get(prefix + name) != manifest.files[name]["bytes"]:
                    self._obstore.put(self._store, prefix + name, directory / name)
            for name in (SIGNATURE_FILE, MANIFEST_FILE):
                if (directory / name).exists():
                    self._obstore.put(self._store, prefix + name, directory / name)
            self._obstore.put(self._store, CURRENT_FILE, f"{manifest.id}\n".encode())
        return f"{self._url}/{manifest.id}"

    @cached_property
    def _bundle(self) -> str:
        """The prefix of the bundle's files: the id and a slash. Empty if the URL names a bundle."""
        if is_bundle_id(self._url.rpartition("/")[2]):
            return ""
        content = self._read(CURRENT_FILE)
        if content is None and self._read(MANIFEST_FILE) is not None:
            return ""
        named = (content or b"").decode("ascii", errors="replace").strip()
        if not is_bundle_id(named):
            raise TransferError(
                f"There is no bundle at {self._url}: neither a valid {CURRENT_FILE} nor "
                f"{MANIFEST_FILE} exists. `vouch-build push` copies a bundle to a bucket."
            )
        return f"{named}/"

    def _read(self, path: str) -> bytes | None:
        with self._reached("be read"):
            try:
                found = self._obstore.get(self._store, path)
            except (FileNotFoundError, self._errors.NotFoundError):
                return None
            except self._errors.PermissionDeniedError:
                # S3 reports a missing file as a denied permission if listing is not permitted.
                if path.endswith(SIGNATURE_FILE):
                    return None
                raise
            if found.meta["size"] > MOST_BYTES:
                raise TransferError(f"{path} at {self._url} is too large for a bundle.")
            return bytes(found.bytes())

    @contextmanager
    def _reached(self, what: str) -> Iterator[None]:
        """Convert failures to a `TransferError` whose message is one line without secrets."""
        try:
            yield
        except (self._errors.BaseError, FileNotFoundError, ValueError) as error:
            raise TransferError(
                f"{self._url} cannot {what} ({type(error).__name__}: {redacted(error)}). Check "
                "that the bucket exists, and that the credentials in the environment (AWS_…, "
                "GOOGLE_…, AZURE_…) permit access. Then run the same command to continue."
            ) from error


CARD_FILE = "README.md"


class Hub:
    """A repository, at a revision.

    Parameters
    ----------
    repository : ``owner/name``.
    revision : a branch, a tag or a commit; None for the main branch.
    public : whether the repository is public if it is created.

    Raises
    ------
    TransferError : huggingface_hub is not installed.
    """

    def __init__(self, repository: str, revision: str | None, *, public: bool) -> None:
        try:
            import httpx2  # noqa: PLC0415 - an extra
            import huggingface_hub  # noqa: PLC0415
            from huggingface_hub import errors  # noqa: PLC0415
        except ImportError as error:
            raise TransferError(
                f"Reaching the Hugging Face Hub needs huggingface_hub. {how_to_install('hub')}"
            ) from error
        self._repository, self._revision, self._public = repository, revision, public
        self._library = huggingface_hub
        self._api = huggingface_hub.HfApi()
        self._failures = (
            httpx2.HTTPError,  # the Hub answers with an error, or does not answer
            errors.EntryNotFoundError,
            errors.HFValidationError,
            errors.FileMetadataError,
            RuntimeError,  # an interrupted upload
            ConnectionError,  # an interrupted upload of a large file
            TimeoutError,
        )

    def read(self, name: str) -> bytes | None:
        """Return a file of the repository."""
        if name not in self._sizes:
            return None
        if self._sizes[name] > MOST_BYTES:
            raise TransferError(f"{name} at {self} is too large for a bundle.")
        with self._reached("read"):
            path = self._library.hf_hub_download(self._repository, name, revision=self._commit)
            return Path(path).read_bytes()

    def fetch(self, name: str, size: int, directory: Path) -> None:
        """Copy a file of the repository."""
        if self._sizes.get(name) != size:
            raise TransferError(
                f"{name} at {self} has {self._sizes.get(name)} bytes, but {size} bytes in the "
                "manifest. Push the bundle again."
            )
        with self._reached("read"):
            self._library.hf_hub_download(
                self._repository, name, revision=self._commit, local_dir=directory
            )
        shutil.rmtree(directory / ".cache")  # metadata of huggingface_hub

    def put(self, directory: Path, manifest: Manifest) -> str:
        """Create the repository if needed, and commit the bundle."""
        changes: list[CommitOperationAdd | CommitOperationDelete] = [
            self._library.CommitOperationAdd(name, directory / name)
            for name in file_names(directory)
        ]
        with self._reached("written"):
            self._api.create_repo(self._repository, private=not self._public, exist_ok=True)
            card = model_card(manifest, self._repository)
            changes.append(self._library.CommitOperationAdd(CARD_FILE, card.encode()))
            stale = self._pushed_before() - set(file_names(directory))
            changes += [self._library.CommitOperationDelete(name) for name in sorted(stale)]
            commit = self._api.create_commit(
                self._repository,
                changes,
                commit_message=f"Bundle {manifest.id} of the gallery {manifest.gallery['name']}",
                revision=self._revision,
                parent_commit=self._commit,
            )
        return str(commit.commit_url)

    def _pushed_before(self) -> set[str]:
        """Return the files of the previous bundle; a push can delete only these files."""
        try:
            content = self.read(MANIFEST_FILE)
            before = None if content is None else parse_manifest(content, str(self))
        except BundleError:  # the manifest is damaged, or from another release
            return set()
        if before is None:
            return set()
        return {*before.files, SIGNATURE_FILE} & set(self._sizes)

    @cached_property
    def _info(self) -> Any:  # noqa: ANN401 - of huggingface_hub
        """The state of the repository at the revision, fetched once."""
        with self._reached("read"):
            return self._api.model_info(
                self._repository, revision=self._revision, files_metadata=True
            )

    @property
    def _commit(self) -> str:
        return str(self._info.sha)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {one.rfilename: one.size or 0 for one in self._info.siblings or ()}

    @contextmanager
    def _reached(self, what: str) -> Iterator[None]:
        """Convert failures to a `TransferError` with advice."""
        try:
            yield
        except self._failures as error:
            why = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
            message = " ".join(str(why).split())[:500]
            raise TransferError(
                f"{self} cannot be {what} ({type(why).__name__}: {message}). Check that the "
                "repository exists, and that the token permits access (`hf auth login` sets a "
                "token). Then run the same command to continue."
            ) from error

    def __str__(self) -> str:
        return f"hf://{self._repository}" + (f"@{self._revision}" if self._revision else "")


_MEASURED = {
    "recall_at_1": "Recall at 1",
    "recall_at_10": "Recall at 10",
    "top1_ece": "Expected calibration error of the first result",
    "top1_brier": "Brier score of the first result",
    "error_auroc.match_probability": "AUROC: match probability against wrong first results",
    "no_match_auroc.no_match_probability": "AUROC: P(no match) against absent labels",
    "outlier_auroc.near.outlier_score": "AUROC: outlier score against unknown labels",
    "outlier_auroc.far.outlier_score": "AUROC: outlier score against other image types",
    "outlier_auroc.corrupted.outlier_score": "AUROC: outlier score against corrupted images",
}
"""For each key of the evaluation: its name in the model card."""


def model_card(manifest: Manifest, repository: str) -> str:
    """Return the `README.md` of a repository: YAML for the Hub, then Markdown.

    All numbers come from the bundle's evaluation; missing numbers are left out.

    Parameters
    ----------
    repository : ``owner/name``, for the commands in the card.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData  # noqa: PLC0415 - an extra

    gallery, measured = manifest.gallery, dict(_measured(manifest.metrics or {}))
    name = str(gallery["name"])
    data = ModelCardData(
        library_name="vouch",
        pipeline_tag="image-feature-extraction",
        tags=["image-retrieval", "uncertainty", "calibration", "onnx"],
        model_name=name,
        eval_results=[
            EvalResult(
                task_type="image-retrieval",
                task_name="Image retrieval",
                dataset_type=name,
                dataset_name=name,
                metric_type=place,
                metric_name=_MEASURED[place],
                metric_value=value,
            )
            for place, value in measured.items()
        ]
        or None,
    )
    holds = "an encoder, a gallery of images with their thumbnails"
    if "vectors" in manifest.encoder:
        made_by = _plain(str(manifest.encoder["vectors"]["made_by"]))
        holds = f"a gallery of vectors from `{made_by}`"
    about = (
        f"A bundle of Vouch, image search that reports its uncertainty: {holds}, and the "
        "calibration of its probabilities."
    )
    use = (
        f"```sh\nvouch-build pull hf://{repository} bundles/pulled\n"
        "vouch-serve --bundle bundles/pulled\n```\n\n"
        "These commands check every file against `manifest.json`, and the manifest against the id "
        f"of the bundle, `{manifest.id}`."
    )
    description = _plain(str(gallery.get("description") or "A gallery of Vouch."))
    facts, evaluation = _facts(manifest), _evaluation(manifest.metrics or {}, measured)
    parts = [f"# {_plain(name)}", description, about, facts]
    parts += ["## Evaluation", evaluation, "## Use", use]
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"))


def _facts(manifest: Manifest) -> str:
    encoder, calibration = manifest.encoder, manifest.calibration
    calibrated = (
        "none: the verdict is always `not_calibrated`"
        if calibration is None
        else f"{calibration['n_queries']} queries, errors of `match` at most "
        f"{calibration['max_error']:g} with confidence {1 - calibration['delta']:g}"
    )
    rows = {
        "items": f"{manifest.gallery['n_items']:,}",
        "embedding": f"{encoder['dim']} dimensions, variances by `{encoder['posterior']}`",
        "calibration": calibrated,
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {rows[key]} |" for key in rows)])


def _evaluation(metrics: Mapping[str, Any], measured: Mapping[str, float]) -> str:
    if not measured:
        return "The bundle was built without an evaluation."
    head = f"Measured on {metrics['n_queries']} queries that no fit has used."
    rows = [f"| {_MEASURED[place]} | {value:.3f} |" for place, value in measured.items()]
    false_alarms = metrics.get("false_alarm_rate") or {}
    rows += [
        f"| False alarms at α = {alpha} | {rate:.3f} |" for alpha, rate in false_alarms.items()
    ]
    return "\n".join([head, "", "| | |", "|---|---:|", *rows])


def _measured(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the key and value of each measurement in `_MEASURED` that an evaluation has."""
    for place in _MEASURED:
        value: Any = metrics
        for key in place.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            yield place, float(value)


def _plain(text: str) -> str:
    """Return text as one line, escaped for Markdown."""
    return " ".join(text.replace("<", "&lt;").replace("[", "\\[").split())


class BundleFolder:
    """A bundle, or the current bundle of a directory of bundles."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> bytes | None:
        """Return a file of the bundle."""
        try:
            return (self._bundle / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TransferError(f"{name} in {self._path} cannot be read: {error}.") from error

    def fetch(self, name: str, size: int, directory: Path) -> None:  # noqa: ARG002 - of a disk
        """Copy a file of the bundle."""
        try:
            shutil.copyfile(self._bundle / name, directory / name)
        except OSError as error:
            raise TransferError(f"{name} in {self._path} cannot be copied: {error}.") from error

    def put(self, directory: Path, manifest: Manifest) -> str:  # noqa: ARG002 - is read again
        """Copy a bundle into this directory of bundles."""
        return str(pull(BundleFolder(directory), self._path))

    @cached_property
    def _bundle(self) -> Path:
        """The directory of the bundle. It stays the same if another bundle becomes current."""
        return locate(self._path)


ADDRESSES = (
    "a directory, s3://BUCKET/PREFIX (or gs://, az://), or hf://OWNER/NAME; a pull also "
    "takes hf://OWNER/NAME@REVISION"
)


_SCHEME = re.compile(rf"({'|'.join((*BUCKETS, 'hf'))}):", re.IGNORECASE)
"""Beginning of an address whose slashes may be missing."""


def place_at(address: str, *, public: bool = False) -> BundlePlace:
    """Return the place at ``address``.

    Parameters
    ----------
    public : whether a repository that is created on the Hub is public.

    Raises
    ------
    TransferError : the address is empty or misspelt, the scheme is unknown, or the extra for the
        scheme is not installed.
    """
    scheme, separator, rest = address.partition("://")
    if not address.strip():
        raise TransferError(f"{address!r} is not the address of a bundle; wanted {ADDRESSES}.")
    if not separator and (misspelt := _SCHEME.match(address)) is not None:
        raise TransferError(
            f"{address!r} is not the address of a bundle: {misspelt[1].lower()}:// has two "
            f"slashes. Wanted {ADDRESSES}."
        )
    if not separator:
        return BundleFolder(Path(address))
    if scheme in BUCKETS:
        return BundleBucket(address.rstrip("/"))
    if scheme == "hf":
        repository, _, revision = rest.partition("@")
        return Hub(repository.strip("/"), revision or None, public=public)
    raise TransferError(f"{scheme}:// is not supported; wanted {ADDRESSES}.")


def last_part(address: str) -> str:
    """Return the last name in an address: ``digits`` for ``hf://owner/digits@main``."""
    if address.startswith("hf://"):
        address = address.partition("@")[0]
    name = Path(address.partition("://")[2] or Path(address).resolve()).name
    if not name:
        raise TransferError(f"{address!r} is not the address of a bundle; wanted {ADDRESSES}.")
    return name

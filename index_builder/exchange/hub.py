"""A bundle as a repository of the Hugging Face Hub, with a model card.

The repository has the bundle's files, and the model card as `README.md`. A push writes one commit,
and a pull reads one commit, so a pull never gets an incomplete bundle. The token comes from the
variable ``HF_TOKEN``, or from ``hf auth login``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index_builder.exchange.pull import MOST_BYTES
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
from collections.abc import Mapping

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

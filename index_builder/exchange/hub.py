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

from index_builder.exchange.model_card import model_card
from index_builder.exchange.place import MOST_BYTES
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

"""``vouch-build doctor``: finds problems of an installation, a bundle or a run."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from filelock import Timeout

from index_builder.calibration.fit_again import NOTHING_KEPT
from index_builder.configuration.environment import explained, open_with_access, trusted_keys
from index_builder.indexing.workdir import LOCK_FILE, ShardStore, Work
from model_store.bundles.changes import changes_path
from model_store.bundles.directory import (
    CURRENT_FILE,
    bundle_directory,
    bundle_ids,
    created_below,
    current_id,
)
from model_store.bundles.kept_queries import KEPT_QUERIES_FILE
from model_store.bundles.manifest import MANIFEST_FILE, read_manifest
from model_store.bundles.signatures import require_signature
from model_store.bundles.upgrade import old_schema_of
from model_store.decision import outcome_of
from model_store.decision.drift import NOT_TESTED
from model_store.errors import PointerUnreadable, VouchError
from model_store.files import lock_between_processes
from model_store.gallery import ChangesFile
from model_store.gallery.opening import DATABASE_CLIENTS, is_in_database
from model_store.installation import how_to_install
from model_store.machine import usable_processors
from model_store.programs import variable
from model_store.queries import answer_canary
from model_store.text_values import split_address

if TYPE_CHECKING:
    from model_store.bundles.bundle import Bundle

State = Literal["good", "note", "wrong"]

_FOR_TRAINING = frozenset({"torch", "torchvision", "onnx", "safetensors"})
"""Packages needed only for training and export."""

_NEEDED = {
    "numpy": "numpy",
    "scipy": "scipy",
    "pillow": "PIL",
    "faiss-cpu": "faiss",
    "onnx": "onnx",
    "scikit-learn": "sklearn",
    "safetensors": "safetensors",
    "cryptography": "cryptography",
    "torch": "torch",
    "torchvision": "torchvision",
}
_OPTIONAL = {
    "pyarrow": "parquet",
    "ray": "ray",
    **DATABASE_CLIENTS,
    "obstore": "remote",
    "huggingface-hub": "hub",
    "fastapi": "serve",
    "redis": "serve",
}
_CONFINED_BY = {
    "landlock": "Run Linux 5.13 or later, with landlock among /sys/kernel/security/lsm.",
    "seccomp": "Install libseccomp (libseccomp2), or the extra `serve`, and allow seccomp.",
}
"""Parts of the decoders' sandbox, each with advice if the part is missing."""

_REDIS_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    Attributes
    ----------
    state : ``good``, ``wrong``, or ``note`` for something that may be intended.
    what : description of the finding.
    advice : how to fix it; empty if nothing is needed.
    """

    state: State
    what: str
    advice: str = ""


def examine(path: Path | None) -> Iterator[CheckResult]:
    """Check the installation, or the bundle, directory of bundles or run at ``path``."""
    if path is None:
        yield from _installation()
    elif (path / MANIFEST_FILE).is_file():
        yield from _bundle(path)
    elif _has_bundles(path) or created_below(path):
        if _has_bundles(path):
            yield from _bundles(path)
        for root in created_below(path):
            yield CheckResult("good", f"the created gallery in {root} is checked too")
            yield from _bundles(root)
    elif run := _indexing_run(path):
        yield from _run(run)
    else:
        yield CheckResult(
            "wrong",
            f"{path} is neither a bundle, nor a directory of bundles, nor a run of `index`",
            "Name one of them, or give no path to check the installation. After a failed "
            "`vouch-build all`, run the same command again.",
        )


def _has_bundles(path: Path) -> bool:
    return (path / CURRENT_FILE).is_file() or bool(bundle_ids(path))


def _installation() -> Iterator[CheckResult]:
    for package, module in _NEEDED.items():
        yield _package(package, module)
    yield from _onnx_runtime()
    for package, extra in _OPTIONAL.items():
        try:
            yield CheckResult("good", f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            yield CheckResult("note", f"{package} is not installed", how_to_install(extra))
    yield from _sandbox()
    yield CheckResult("good", f"{usable_processors()} processors may be used")
    url = variable("VOUCH_REDIS_URL")
    if url:
        yield _redis(url)


def _package(package: str, module: str) -> CheckResult:
    try:
        importlib.import_module(module)
        return CheckResult("good", f"{package} {metadata.version(package)}")
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        if missing and package in _FOR_TRAINING:
            return CheckResult(
                "note",
                f"{package} is not installed; training and encoders of other libraries need it",
                how_to_install("build"),
            )
        return CheckResult(
            "wrong", f"{package} cannot be imported: {error}", how_to_install("build")
        )


def _onnx_runtime() -> Iterator[CheckResult]:
    finding = _package("onnxruntime", "onnxruntime")
    installed = {one.name for one in metadata.distributions()}
    both = {"onnxruntime", "onnxruntime-gpu"} <= installed
    if both:
        yield CheckResult(
            "wrong",
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other",
            "pip uninstall onnxruntime onnxruntime-gpu, then install Vouch again",
        )
    try:
        import onnxruntime  # noqa: PLC0415 - it may be broken
    except ImportError:
        yield finding
        return
    providers = onnxruntime.get_available_providers()
    yield CheckResult("good", f"onnxruntime {onnxruntime.__version__}: {', '.join(providers)}")
    if Path("/dev/nvidiactl").exists() and "CUDAExecutionProvider" not in providers:
        yield CheckResult(
            "note", "there is a GPU, but ONNX Runtime cannot use it", how_to_install("gpu")
        )


def _sandbox() -> Iterator[CheckResult]:
    """Check which parts of the sandbox for the service's image decoders work on this machine.

    The check runs in a separate process: a process cannot leave a sandbox, and the builder must not
    import the service.
    """
    if importlib.util.find_spec("fastapi") is None:
        return  # the service is not installed
    command = [sys.executable, "-P", "-m", "service.decoding.sandbox"]
    entered = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    missing = [part for part in _CONFINED_BY if part not in entered.stdout.split()]
    if not missing:
        yield CheckResult(
            "good", f"decoders of the service are confined by {' and '.join(_CONFINED_BY)}"
        )
    for part in missing:
        yield CheckResult("note", f"decoders would not be confined by {part}", _CONFINED_BY[part])


def _redis(url: str) -> CheckResult:
    """Check with a plain socket that Redis answers, because the builder has no Redis client."""
    try:
        parts = split_address(url, ("redis", "rediss", "unix"))
    except ValueError as error:
        return CheckResult("wrong", f"VOUCH_REDIS_URL {error}")
    where = f"Redis at {parts.hostname}:{parts.port or 6379}"
    advice = (
        "Start Redis, or correct VOUCH_REDIS_URL. Without Redis, each process has its own cache."
    )
    if parts.scheme not in {"redis", "rediss"} or parts.hostname is None:
        return CheckResult("note", f"VOUCH_REDIS_URL {parts.scheme}:// is not checked")
    try:
        address = (parts.hostname, parts.port or 6379)
        with socket.create_connection(address, timeout=_REDIS_TIMEOUT_S) as connection:
            if parts.scheme == "rediss":
                return CheckResult("good", f"{where} accepts connections")
            connection.sendall(b"PING\r\n")
            reply = connection.recv(64)
    except OSError as error:
        return CheckResult("wrong", f"{where} cannot be reached: {error}", advice)
    if reply.startswith((b"+PONG", b"-NOAUTH")):
        return CheckResult("good", f"{where} answers")
    return CheckResult("wrong", f"{where} is not Redis: it answers {reply!r}", advice)


def _bundle(
    directory: Path, root: Path | None = None, *, with_outcome: bool = True
) -> Iterator[CheckResult]:
    """Check a bundle; ``root`` is its directory of bundles, if it is known."""
    name = directory.resolve().name
    try:
        opened = open_with_access(directory)
        if root is not None and is_in_database(directory):
            opened = opened.within(root)  # the log of the changes is needed, too
        retriever = opened.retriever
        answer_canary(retriever)
    except VouchError as error:
        yield CheckResult("wrong", f"bundle {name}: {explained(error)}")
        return
    except Exception as error:
        yield CheckResult("wrong", f"bundle {name}: {error}", "Build or copy the bundle again.")
        return
    yield CheckResult(
        "good",
        f"bundle {name}: {retriever.gallery.n_items:,} items of {opened.name!r}, complete; it "
        "answers a query",
    )
    # Services can continue without an earlier bundle.
    yield from _signature(opened, "wrong" if with_outcome else "note")
    # These texts advise to calibrate again, which needs the calibration queries.
    instead = None if (directory / KEPT_QUERIES_FILE).exists() else NOTHING_KEPT
    if retriever.stale is not None:
        advice = instead or retriever.stale
        yield CheckResult("note", f"bundle {name}: its calibration is stale", advice)
    if retriever.calibration is not None and retriever.calibration.absent_outlier_scores is None:
        advice = instead or NOT_TESTED
        yield CheckResult("note", f"bundle {name}: drift is not tested", advice)
    if with_outcome:
        for line in outcome_of(retriever.calibration, opened.manifest.metrics).lines:
            yield CheckResult("good" if line.severity == "fact" else "note", line.sentence)


def _signature(opened: Bundle, state: State) -> Iterator[CheckResult]:
    """Check that services which trust the keys in ``VOUCH_BUNDLE_KEYS`` open the bundle."""
    try:
        if trusted := trusted_keys():
            require_signature(opened.directory, opened.manifest, trusted)
    except VouchError as error:
        yield CheckResult(state, f"signature: {error}")


def _bundles(root: Path) -> Iterator[CheckResult]:
    ids = bundle_ids(root)
    current = yield from _pointer(root, ids)
    for bundle_id in ids:
        directory = bundle_directory(root, bundle_id)
        schema = _old_schema(directory)
        if schema is not None and bundle_id != current:
            kept = f"bundle {bundle_id} has schema {schema}; only its own release can read it"
            yield CheckResult("note", kept, f"`vouch-build prune {root}` removes it.")
            continue
        yield from _bundle(directory, root, with_outcome=bundle_id == current)
        if schema is None:
            yield from _changes(root, bundle_id)
    for partial in sorted(root.glob(".*.partial")):
        yield CheckResult(
            "note",
            f"{partial} is an unfinished bundle",
            f"The next publish or `vouch-build prune {root}` removes it, unless it is in use.",
        )


def _old_schema(directory: Path) -> int | None:
    try:
        return old_schema_of(directory)
    except VouchError:  # `_bundle` reports it
        return None


def _pointer(root: Path, ids: list[str]) -> Generator[CheckResult, None, str | None]:
    """Check that `CURRENT` names an existing bundle, and return its id."""
    advice = f"vouch-build activate {root} with one of: {', '.join(ids) or 'no bundles'}"
    try:
        current = current_id(root)
    except PointerUnreadable as error:
        yield CheckResult("wrong", str(error), advice)
        return None
    if current is None:
        yield CheckResult(
            "wrong", f"{root} names no current bundle", f"vouch-build activate {root} BUNDLE"
        )
    elif current not in ids:
        yield CheckResult(
            "wrong", f"{root / CURRENT_FILE} names {current}, which does not exist", advice
        )
    return current


def _changes(root: Path, bundle_id: str) -> Iterator[CheckResult]:
    """Check that the log of a bundle's changes is complete."""
    path = changes_path(root, bundle_id)
    beside = sorted(one.name for one in path.parent.glob(f"{path.name}*"))
    if not beside:
        return
    try:
        fingerprint = read_manifest(bundle_directory(root, bundle_id)).encoder["fingerprint"]
    except VouchError:  # `_bundle` reports it
        return
    log = ChangesFile(path, bundle_id, str(fingerprint))
    try:
        log.verify()
        yield CheckResult("good", f"changes of {bundle_id}: complete, up to change {log.last()}")
    except VouchError as error:
        yield CheckResult(
            "wrong",
            f"changes of {bundle_id}: {error}",
            "Check the disk. Stop the services, and restore the last backup (`vouch-build "
            f"restore`); or, to continue without these changes, move {', '.join(beside)} out of "
            f"{path.parent}.",
        )
    finally:
        log.close()


def _indexing_run(path: Path) -> Work | None:
    found = [Work(one) for one in (path, path / "index") if Work(one).summary.is_file()]
    return found[0] if found else None


def _run(work: Work) -> Iterator[CheckResult]:
    try:
        summary = json.loads(work.summary.read_text(encoding="utf-8"))
        state, n_blocks = summary["state"], int(summary["n_blocks"])
    except (ValueError, KeyError) as error:
        yield CheckResult(
            "wrong", f"{work.summary} cannot be read ({error})", "Index with --no-resume."
        )
        return
    if work.quarantine.is_file():
        n_bad = len(work.quarantine.read_text(encoding="utf-8").splitlines())
        if n_bad:
            yield CheckResult("note", f"{n_bad:,} files were left out", f"See {work.quarantine}.")
    if work.losses.is_file():
        n_changed = len(work.losses.read_text(encoding="utf-8").splitlines())
        if n_changed:
            yield CheckResult(
                "note",
                f"{n_changed:,} images lost data in decoding",
                f"See {work.losses}.",
            )
    if state == "published":
        yield CheckResult("good", f"{work.directory} is finished: {summary['bundle']}")
        return
    if _is_occupied(work):
        yield CheckResult("good", f"a process works in {work.directory}")
        return
    sound, damaged = _shards(work.store, n_blocks)
    if damaged:
        yield CheckResult("note", f"{damaged} damaged shards", "The next run rebuilds them.")
    yield CheckResult(
        "wrong",
        f"{work.directory} is unfinished: {sound:,} of {n_blocks:,} blocks are embedded",
        "Run the same `vouch-build index` again to embed the missing blocks.",
    )


def _is_occupied(work: Work) -> bool:
    if not (work.directory / LOCK_FILE).exists():
        return False
    try:
        with lock_between_processes(work.directory / LOCK_FILE).acquire(blocking=False):
            return False
    except Timeout:
        return True
    except OSError:  # the lock belongs to another user
        return False


def _shards(store: ShardStore, n_blocks: int) -> tuple[int, int]:
    """Return the number of sound shards, and the number of damaged shards."""
    sound = damaged = 0
    for number in range(n_blocks):
        try:
            store.read(number)
        except FileNotFoundError:
            continue
        except ValueError:
            damaged += 1
        else:
            sound += 1
    return sound, damaged

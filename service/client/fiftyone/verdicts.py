"""Verdicts as fields of FiftyOne's samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fiftyone as fo

from service.client.client import VouchClient
from service.client.contract import VouchProblem

_FIELDS = {
    "vouch_verdict": (fo.StringField, "The verdict of Vouch"),
    "match_probability": (fo.FloatField, "Calibrated probability that the first result matches"),
    "uncertainty": (fo.FloatField, "Standard deviation of the similarity to the nearest item"),
    "ood": (fo.BooleanField, "Whether the image is unlike the calibration images"),
}

_WRITTEN_TOGETHER = 64
"""Number of samples per write. If the run is interrupted, at most this many answers are lost."""

_ASKED_TOGETHER = 4
"""Number of concurrent requests; the service encodes their images as one batch."""


@dataclass
class WrittenVerdicts:
    """The number of answered samples, and the problems of the unanswered samples.

    Attributes
    ----------
    problems : problem of each unanswered sample, by sample id; the sample's fields are unchanged.
    """

    n_written: int = 0
    problems: dict[str, str] = field(default_factory=dict)


def write_verdicts(
    samples: Any,  # noqa: ANN401 - FiftyOne has no types
    client: VouchClient,
    gallery: str,
    prefix: str = "",
    progress: Callable[[float], object] | None = None,
) -> WrittenVerdicts:
    """Search with each sample, and write the answer into the sample's fields.

    The fields are `vouch_verdict`, `match_probability` (of the first result), `uncertainty` and
    `ood`. If the gallery has no calibration, `match_probability` and `ood` are null.

    Parameters
    ----------
    samples : a dataset or view of images.
    prefix : prefix of the field names, to avoid a clash with fields of the dataset.
    progress : called with the finished share of the samples.

    Raises
    ------
    ValueError : the dataset already has another field of this name; nothing was written.
    """
    names = {name: prefix + name for name in _FIELDS}
    ids, paths = samples.values(["id", "filepath"])
    _declare(getattr(samples, "_dataset", samples), names)
    written = WrittenVerdicts()
    with ThreadPoolExecutor(_ASKED_TOGETHER) as pool:
        for chunk in _chunks(list(zip(ids, paths, strict=True))):
            found: dict[str, dict[str, Any]] = {name: {} for name in names.values()}
            answers = pool.map(lambda one: _fields(client, gallery, one[1]), chunk)
            for (sample_id, _), answer in zip(chunk, answers, strict=True):
                if isinstance(answer, str):
                    written.problems[sample_id] = answer
                    continue
                written.n_written += 1
                for name, value in answer.items():
                    found[names[name]][sample_id] = value
            for name, values in found.items():
                if values:
                    samples.set_values(name, values, key_field="id")
            if progress is not None:
                progress((written.n_written + len(written.problems)) / len(ids))
    return written


def _fields(client: VouchClient, gallery: str, path: str) -> dict[str, Any] | str:
    """Return the field values of an image, or the problem of this image."""
    try:
        answer = client.search(gallery, Path(path), limit=1)
    except OSError as error:
        return f"unreadable: {error.strerror}"
    except VouchProblem as problem:
        if problem.status not in {400, 413, 415, 422}:  # not this image's
            raise
        return f"{problem.code}: {problem.detail}"
    first = answer.results[0] if answer.results else None
    return {
        "vouch_verdict": answer.verdict,
        "match_probability": None if first is None else first.match_probability,
        "uncertainty": answer.query.uncertainty.value,
        "ood": answer.query.ood.flag,
    }


def _declare(dataset: Any, names: dict[str, str]) -> None:  # noqa: ANN401
    """Add the fields; raise ValueError if fields of other programs have these names."""
    schema = dataset.get_field_schema()
    foreign = [
        name
        for name in names.values()
        if name in schema and (schema[name].info or {}).get("written_by") != "vouch"
    ]
    if foreign:
        raise ValueError(
            f"The dataset {dataset.name!r} has fields {foreign} that Vouch did not make. Give a "
            "prefix, such as 'vouch_', or rename these fields."
        )
    for name, (kind, description) in _FIELDS.items():
        if names[name] not in schema:
            dataset.add_sample_field(
                names[name], kind, description=description, info={"written_by": "vouch"}
            )


def _chunks(pairs: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    for start in range(0, len(pairs), _WRITTEN_TOGETHER):
        yield pairs[start : start + _WRITTEN_TOGETHER]

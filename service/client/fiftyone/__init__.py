"""The plugin of FiftyOne: an operator that searches with the samples of a dataset.

FiftyOne finds the plugin by `fiftyone.yml`. FiftyOne and the service need different web frameworks.
Install Vouch's client in FiftyOne's environment; do not install FiftyOne beside the service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fiftyone as fo
import fiftyone.operators as foo
from fiftyone.operators import types

from service.client.client import VouchClient
from service.client.contract import VouchProblem

__all__ = ["WriteVerdicts", "WrittenVerdicts", "register", "write_verdicts"]

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


_DEFAULT_URL = "http://127.0.0.1:8080"


class WriteVerdicts(foo.Operator):  # type: ignore[misc]
    """Searches with each sample of a view, and writes the answers into the samples' fields."""

    @property
    def config(self) -> Any:  # noqa: ANN401 - FiftyOne has no types
        """Return the entry of the operator in the App's list."""
        return foo.OperatorConfig(
            name="write_verdicts",
            label="Vouch: write verdicts",
            description="Search a Vouch gallery with each sample, and write the verdict",
            allow_delegated_execution=True,
        )

    def resolve_input(self, ctx: Any) -> Any:  # noqa: ANN401
        """Return the form with the service's address, the gallery and the prefix of the fields."""
        ctx.target_view()
        form = types.Object()
        form.str("gallery", required=True, label="Gallery")
        form.str("url", default=_url(ctx), label="URL of the Vouch service")
        form.str("prefix", default="", label="Prefix of the fields' names")
        return types.Property(form, view=types.View(label="Write verdicts of Vouch"))

    def execute(self, ctx: Any) -> dict[str, Any]:  # noqa: ANN401
        """Write the verdicts; return the number of answered samples, and the problems."""
        key = ctx.secrets.get("VOUCH_API_KEY")
        with VouchClient(ctx.params.get("url") or _url(ctx), key or None) as client:
            written = write_verdicts(
                ctx.target_view(),
                client,
                ctx.params["gallery"],
                prefix=ctx.params.get("prefix") or "",
                progress=ctx.set_progress,
            )
        if not ctx.delegated:
            ctx.trigger("reload_dataset")
        return {"written": written.n_written, "problems": written.problems}

    def resolve_output(self, ctx: Any) -> Any:  # noqa: ANN401, ARG002 - FiftyOne's signature
        """Return the form that the App shows after the run."""
        shown = types.Object()
        shown.int("written", label="Samples written")
        shown.obj("problems", label="Problems, by sample")
        return types.Property(shown)


def _url(ctx: Any) -> str:  # noqa: ANN401
    return str(ctx.secrets.get("VOUCH_URL") or _DEFAULT_URL)


def register(plugin: Any) -> None:  # noqa: ANN401
    """Register the operator; FiftyOne calls this."""
    plugin.register(WriteVerdicts)

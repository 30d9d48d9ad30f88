"""The model card of a bundle: its evaluation, in words and as the Hub reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from model_store.bundles.manifest import Manifest

_MEASURED = {
    "recall_at_1": "Recall at 1",
    "recall_at_10": "Recall at 10",
    "top1_ece": "Expected calibration error of the first result",
    "top1_brier": "Brier score of the first result",
    "error_auroc.match_probability": "AUROC: match probability against wrong first results",
    "no_match_auroc.no_match_probability": "AUROC: P(no match) against absent labels",
    "outlier_auroc.near.outlier_score": "AUROC: outlier score against unknown labels",
    "outlier_auroc.far.outlier_score": "AUROC: outlier score against another world",
    "outlier_auroc.corrupted.outlier_score": "AUROC: outlier score against corrupted images",
}
"""Places in the evaluation, and what is measured there."""


def model_card(manifest: Manifest, repository: str) -> str:
    """Return the `README.md` of a repository: YAML for the Hub, then Markdown for people.

    Numbers are those of the bundle's evaluation; what was not measured is not in it.

    Parameters
    ----------
    repository : ``owner/name``, as the commands in the card have it.
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
        holds = f"a gallery of vectors that `{made_by}` has made"
    about = (
        f"A bundle of Vouch, image search that says how sure it is: {holds}, and the "
        "calibration of its probabilities."
    )
    use = (
        f"```sh\nvouch-build pull hf://{repository} bundles/pulled\n"
        "vouch-serve --bundle bundles/pulled\n```\n\n"
        "Every file is checked against `manifest.json`, and the manifest against the bundle's id, "
        f"`{manifest.id}`."
    )
    description = _plain(str(gallery.get("description") or "A gallery of Vouch."))
    facts, evaluation = _facts(manifest), _evaluation(manifest.metrics or {}, measured)
    parts = [f"# {_plain(name)}", description, about, facts]
    parts += ["## Evaluation", evaluation, "## Use", use]
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"))


def _facts(manifest: Manifest) -> str:
    encoder, calibration = manifest.encoder, manifest.calibration
    calibrated = (
        "none: its verdict is always `not_calibrated`"
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
        return "Nothing was measured when the bundle was built."
    head = f"Measured on {metrics['n_queries']} queries that were used for nothing else."
    rows = [f"| {_MEASURED[place]} | {value:.3f} |" for place, value in measured.items()]
    false_alarms = metrics.get("false_alarm_rate") or {}
    rows += [
        f"| False alarms at α = {alpha} | {rate:.3f} |" for alpha, rate in false_alarms.items()
    ]
    return "\n".join([head, "", "| | |", "|---|---:|", *rows])


def _measured(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The measures of `_MEASURED` that an evaluation has."""
    for place in _MEASURED:
        value: Any = metrics
        for key in place.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            yield place, float(value)


def _plain(text: str) -> str:
    """Return text that Markdown shows literally, in one line."""
    return " ".join(text.replace("<", "&lt;").replace("[", "\\[").split())

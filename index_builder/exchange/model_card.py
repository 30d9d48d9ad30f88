"""The model card of a bundle: metadata for the Hub, and the evaluation as text."""

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

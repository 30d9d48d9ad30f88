"""Checks that the input files of a build exist, before the slow import of torch."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from index_builder.configuration.build import BuildConfig
from model_store.errors import DatasetError, WeightsError


def require_inputs(config: BuildConfig, *, reads_trunk: bool) -> None:
    """Check that all files of the configuration exist.

    Parameters
    ----------
    reads_trunk : whether the weights of the trunk are also checked.

    Raises
    ------
    DatasetError : the folder or table does not exist, or a withheld label has no sub-folder.
    WeightsError : the file of weights does not exist.
    ConfigError : the client of the database is not installed.
    """
    dataset, weights = config.dataset, config.network.weights
    for path in (dataset.path, dataset.items):
        if path is not None and not path.exists():
            raise DatasetError(f"{path} does not exist. Name the folder or file with the data.")
    if dataset.kind == "folder" and dataset.path is not None:
        _require_labels(dataset.path, dataset.withheld_labels)
    if reads_trunk and weights is not None and Path(weights).suffix and not Path(weights).is_file():
        raise WeightsError(f"network.weights: {weights} does not exist, or is not a file.")
    config.index.require_client()


def _require_labels(folder: Path, withheld: tuple[str, ...]) -> None:
    """Check that each withheld label has a sub-folder."""
    if not folder.is_dir():
        raise DatasetError(
            f"{folder} is not a folder. `vouch-build all --images` also takes other sources."
        )
    missing = [name for name in withheld if not (folder / name).is_dir()]
    if not missing:
        return
    labels = sorted(path.name for path in folder.iterdir() if path.is_dir())
    close = get_close_matches(missing[0], labels, 1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    listed = ", ".join(labels[:20]) + (", …" if len(labels) > 20 else "")
    raise DatasetError(
        f"dataset.withheld_labels names {missing}, but {folder} has no such sub-folders.{meant} "
        f"It has {listed or 'none'}."
    )

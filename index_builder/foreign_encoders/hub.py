"""Fetches models from the Hugging Face Hub; fails within seconds if the Hub is unreachable."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from index_builder.storage.web import Probe
from model_store.errors import EncoderSourceError

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_ENDPOINT = "https://huggingface.co"


class HubModel:
    """A model that a library fetches from the hub.

    Parameters
    ----------
    name : the model's name.
    is_local : True if nothing has to be fetched.
    """

    def __init__(self, name: str, *, is_local: bool) -> None:
        self._name, self._is_local = name, is_local
        is_set = (os.environ.get(one, "").lower() in {"1", "on", "yes", "true"} for one in _OFFLINE)
        self._offline = any(is_set)
        self._probe = None
        if not (is_local or self._offline):
            self._probe = Probe(os.environ.get("HF_ENDPOINT", _ENDPOINT))

    def require_any(self) -> None:
        """Fail early if the hub does not answer and the local cache is empty.

        Call this method before the imports of torch and of the library, which take seconds.

        Raises
        ------
        EncoderSourceError
        """
        if self._probe is None or self._probe.answers():
            return
        from huggingface_hub import constants  # noqa: PLC0415 - comes with the libraries

        if not any(Path(constants.HF_HUB_CACHE).glob("models--*")):
            raise self._refusal()

    @contextmanager
    def fetched(self) -> Iterator[None]:
        """Let the library fetch a model in this context; turn off log messages and useless retries.

        If the hub does not answer, the model comes from the local cache.

        Raises
        ------
        EncoderSourceError : the model is not in the cache, and the hub does not answer.
        """
        from huggingface_hub import constants  # noqa: PLC0415 - the library has imported it

        disabled, offline = logging.root.manager.disable, constants.HF_HUB_OFFLINE
        logging.disable(logging.ERROR)
        if self._probe is not None and not self._probe.answers():
            constants.HF_HUB_OFFLINE = True
        try:
            yield
        except EncoderSourceError as error:
            if self._is_local or not constants.HF_HUB_OFFLINE or not _is_of_the_hub(error):
                raise
            raise self._refusal() from error
        finally:
            constants.HF_HUB_OFFLINE = offline
            logging.disable(disabled)

    def _refusal(self) -> EncoderSourceError:
        why = "HF_HUB_OFFLINE is set"
        if self._probe is not None:
            why = f"there is no network, or {self._probe.url} does not answer"
        return EncoderSourceError(
            f"Cannot fetch {self._name!r}: {why}, and the model is not in the local cache of the "
            "hub. Give a local file or directory instead. Or fetch the model into the cache "
            "(HF_HOME), and set HF_HUB_OFFLINE=1."
        )


def _is_of_the_hub(error: BaseException) -> bool:
    """Return whether an error comes from huggingface_hub, or from missing files."""
    found: BaseException | None = error
    while found is not None:
        of_the_hub = type(found).__module__.partition(".")[0] == "huggingface_hub"
        if of_the_hub or isinstance(found, OSError):
            return True
        found = found.__cause__ or found.__context__
    return False

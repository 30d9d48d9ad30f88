"""Encoders that bundles share; each encoder runs once for all bundles that use it.

Encoders are compared by the digest of their file, so one process can serve a thousand galleries
with the same encoder.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from model_store.bundles.manifest import describe_shared
from model_store.encoder.contract import Encoder
from model_store.encoder.forwarding import ForwardingEncoder
from model_store.encoder.text import TEXT_ENCODER_FILE, OnnxTextEncoder, open_text_encoder
from model_store.processors import ProviderChoice

FindFile = Callable[[], Path]
OpenFound = Callable[[FindFile, ProviderChoice, int], Encoder]
"""A function that opens an encoder. At each restart of the encoder, the `FindFile` is called again,
because the file may have moved."""

_Key = tuple[str, ProviderChoice, int]


class SharedEncoder(ForwardingEncoder):
    """A handle of a shared encoder: an `Encoder` for one bundle."""

    def __init__(self, real: Encoder, let_go: Callable[[], None]) -> None:
        super().__init__(real)
        self._let_go = let_go
        self._closing = threading.Lock()

    def close(self) -> None:
        """Release the handle; the last release closes the encoder."""
        if self._closing.acquire(blocking=False):  # only the first call
            self._let_go()


@dataclass(eq=False, slots=True)
class _Held:
    """An encoder, and the copies of its file; each bundle that uses the encoder has one copy."""

    files: list[Path] = field(default_factory=list)
    opening: threading.Lock = field(default_factory=threading.Lock)
    encoder: Encoder | None = None

    def file(self) -> Path:
        """Return the first copy of the encoder's file that still exists."""
        return next((file for file in self.files if file.exists()), self.files[0])


class SharedEncoders:
    """Opens each encoder once. Threads can share it.

    Parameters
    ----------
    open_encoder : function that opens a new encoder.
    """

    def __init__(self, open_encoder: OpenFound) -> None:
        self._open_encoder = open_encoder
        self._held: dict[_Key, _Held] = {}
        self._lock = threading.Lock()
        self._texts: WeakValueDictionary[tuple[str, int], OnnxTextEncoder] = WeakValueDictionary()

    def open(
        self, path: Path, provider: ProviderChoice = "auto", threads: int = 0
    ) -> SharedEncoder:
        """Return a handle of the encoder at ``path``.

        Raises
        ------
        EncoderError : see `OnnxEncoder`.
        """
        key = str(describe_shared(path)["sha256"]), provider, threads
        with self._lock:
            held = self._held.setdefault(key, _Held())
            held.files.append(path)
        let_go = partial(self._let_go, key, held, path)
        try:
            with held.opening:
                if held.encoder is None:
                    held.encoder = self._open_encoder(held.file, provider, threads)
            return SharedEncoder(held.encoder, let_go)
        except BaseException:
            let_go()
            raise

    def open_text(self, directory: Path, threads: int = 0) -> OnnxTextEncoder | None:
        """Return the text encoder in a directory; None if the directory has no text encoder."""
        if not (directory / TEXT_ENCODER_FILE).exists():
            return None
        key = str(describe_shared(directory / TEXT_ENCODER_FILE)["sha256"]), threads
        with self._lock:
            found = self._texts.get(key)
            if found is None:
                found = open_text_encoder(directory, threads)
                if found is not None:
                    self._texts[key] = found
            return found

    def _let_go(self, key: _Key, held: _Held, path: Path) -> None:
        with self._lock:
            held.files.remove(path)
            last = not held.files
            if last:
                del self._held[key]
        if last and held.encoder is not None:
            held.encoder.close()

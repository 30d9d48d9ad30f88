"""The online half of Vouch: HTTP in front of an opened bundle, and no torch.

The way of a request: `routes` (HTTP) → `engine` (cache, threads) → `model_store.retriever` (decode,
encode, search, decide) → `answers` → `schemas` (JSON). `uploads` and `cursors` read what comes in
otherwise than by a form. Around it: `settings`, `problems` (errors as RFC 9457), `middleware`
(request ids, limits, headers), `cache`; `request_record` is what is known of a request, from which
`telemetry` (metrics), `logs` and `tracing` are made. `app` puts them together, `page/` is what a
visitor sees at ``/``, and `client` asks a service from Python.
"""

"""The online half of Vouch: HTTP in front of opened bundles, and no torch.

The way of a request, with the rooms it passes::

    coming in     middleware (id, bounds, headers, log) → admission (how many, how long)
                  → routes (paths; uploads, cursors) ← access (keys, rates, keys_command)
    at work       galleries (which bundle) → engine (outcomes)
                  → cache, single_flight → decoding (processes of decoder) → batching → encoding
                    (a process) → model_store.retriever (search, decide)
    going out     answers → schemas (JSON), problems (errors as RFC 9457), openapi

Beside it: `settings`, and `state`, which routes work on; `request_record` is what is known of a
request, from which `telemetry` and `gallery_metrics`, `logs` and `tracing` are made; `resting`
leaves a broken Redis alone. `app` puts all of it together, `page/` is what a visitor sees at ``/``,
and `client` asks a service from Python.
"""

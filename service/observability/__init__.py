"""Records, metrics, logs and traces for operators.

::

    records    one request's facts, collected while it is answered
    metrics    counters and histograms for Prometheus
    logs       one JSON object a line
    tracing    OpenTelemetry spans
"""

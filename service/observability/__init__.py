"""Records, metrics, logs and traces for operators.

::

    records    facts of one request, for log, metrics and trace
    metrics    counters and histograms for Prometheus
    logs       one JSON object a line
    tracing    OpenTelemetry spans
"""

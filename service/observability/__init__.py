"""Records, metrics, logs and traces for operators.

::

    metrics    counters and histograms for Prometheus
    logs       facts of one request, for log, metrics and trace; one JSON object a line
    tracing    OpenTelemetry spans
"""

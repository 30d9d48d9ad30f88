"""What operators see.

::

    records    what is known of one request while it is answered
    metrics    counters and histograms for Prometheus
    logs       one JSON object a line
    tracing    OpenTelemetry spans
"""

"""The service: serves bundles over HTTP, without PyTorch.

The path of a request::

    http             limits, paths, bodies, answers, errors
    access           keys, scopes and rate limits
    serving          served bundles, live writes, activation, health
    decoding         uploaded bytes → pixels, in processes
    encoding         pixels → predictive distribution, in a process; cached
    model_store      search and decision

Other modules: `schemas` (the JSON of requests and answers), `serializers` (core answers to JSON
records), `observability` (metrics, logs, traces), `workers` (the processes of one service),
`shared_pixels` (memory of two processes), `scheduling` (turns of callers, threads, tasks),
`redis_calls` (tolerates a broken Redis), `settings` (``VOUCH_*``), `command_line` (an option for
each setting), `health_check` (of a container), `app` (assembles the application), `start` (starts
the processes) and `client` (Python client and integrations).
"""

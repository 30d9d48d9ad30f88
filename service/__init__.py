"""The online half of Vouch: HTTP in front of opened bundles, and no torch.

The way of a request::

    http             the edge: bounds, paths, bodies, answers, errors
    access           who asks, and how often they may
    serving          which bundle answers; live writes, hot swap, health
    decoding         uploaded bytes → pixels, in processes
    encoding         pixels → predictive distribution, in a process; cached
    model_store      search and decision

Beside it: `schemas` (the JSON of requests and answers), `serializers` (answers as these records),
`observability` (metrics, logs, traces), `processes` (what child processes share), `fair_share`
(places that callers share), `redis_calls` and `circuit_breaker` (a Redis that is broken, or lies,
is left alone), `settings` (``VOUCH_*``), `command_line` (an option for each), `health_check`
(of a container), `app` (puts everything together), `start` (one process or several) and `client`
(asks a service from Python, and from the tools of others).
"""

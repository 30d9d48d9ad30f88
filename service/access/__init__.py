"""Authentication, permission and rate limits.

::

    access       the caller of a request; its scope, rate limit and quotas
    keys         API keys in a file
    hosts        allowed host names
    command      ``vouch-keys``
    rate_limits  requests of a caller, counted in this process or in Redis
"""

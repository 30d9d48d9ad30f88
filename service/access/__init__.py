"""Authentication, permission and rate limits.

::

    access       keys, scopes and rate limits of requests
    caller       the caller of a request, and the limits of its key
    keys         API keys in a file
    hosts        allowed host names
    command      ``vouch-keys``
    rate_limits  requests of a caller, counted in this process or in Redis
"""

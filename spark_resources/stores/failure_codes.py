"""Error codes of failed deletes, as reported by stores and their clients; used for advice to operators.

They do not decide whether a delete is retried: that depends on `DeleteResult.transient`, which the store sets.
"""

from spark_resources.stores.retry import TRANSIENT_STATUSES

TRANSIENT_CODES = frozenset(
    {
        "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "OperationAborted", "Throttling",
        "ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded", "ServerBusy", "OperationTimedOut",
        *map(str, TRANSIENT_STATUSES), "ConditionalRequestConflict", "NoAnswer", "NotSent", "unknown",
        "ReadTimeoutError", "ConnectTimeoutError", "ConnectionClosedError", "EndpointConnectionError",
        "ServiceRequestError", "ServiceResponseError", "ServiceRequestTimeoutError", "ServiceResponseTimeoutError",
        "TooManyRequests",
        "ConnectionError", "HTTPClientError", "ResponseStreamingError", "IncompleteReadError", "ProxyConnectionError",
        "rateLimitExceeded", "userRateLimitExceeded", "ReadTimeout", "ConnectTimeout", "ChunkedEncodingError",
        "TransportError",
    }
)  # fmt: skip
"""The store was busy or unreachable, or its response was lost."""

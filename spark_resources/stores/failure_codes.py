"""The codes of failed deletes, as stores and their clients spell them: what an operator is advised by.

Whether a delete is repeated isn't decided by these, but by the store that failed (`DeleteResult.transient`).
"""

TRANSIENT_CODES = frozenset(
    {
        "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "OperationAborted", "Throttling",
        "ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded", "ServerBusy", "OperationTimedOut",
        "500", "502", "503", "504", "429", "408", "NoAnswer", "NotSent", "unknown",
        "ReadTimeoutError", "ConnectTimeoutError", "ConnectionClosedError", "EndpointConnectionError",
        "ServiceRequestError", "ServiceResponseError", "ServiceRequestTimeoutError", "ServiceResponseTimeoutError",
        "TooManyRequests",
        "ConnectionError", "HTTPClientError", "ResponseStreamingError", "IncompleteReadError", "ProxyConnectionError",
        "rateLimitExceeded", "userRateLimitExceeded", "ReadTimeout", "ConnectTimeout", "ChunkedEncodingError",
        "TransportError",
    }
)  # fmt: skip
"""The store was busy or out of reach, or its answer got lost."""

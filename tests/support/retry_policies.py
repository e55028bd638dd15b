"""Retry policies for tests: a number of requests, without waits between them."""

from spark_resources.stores.retry import RetryPolicy


def requests(number: int) -> RetryPolicy:
    return RetryPolicy(first_wait_s=0, attempts=number)

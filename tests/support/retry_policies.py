"""Retry policies for tests: several attempts without waits between them."""

from spark_resources.stores.retry import RetryPolicy


def no_wait_policy(attempts: int) -> RetryPolicy:
    return RetryPolicy(first_wait_s=0, attempts=attempts)

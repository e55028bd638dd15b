"""Notifications of events by webhook, metrics for Prometheus, and structured logs.

`messages` has the notifications and their bodies, `run_events` reads them from Dagster's runs, `webhook` sends them,
and `outbox` is the queue of those that are still to be sent. `gauges` computes metrics from records, `metrics` reads
the records of a repository and publishes its metrics, and `metrics_file` updates the file for the node exporter.
`log_lines` and `console_logger` are the structured logs.
"""

"""Spark: its session, datasets in a namespace, and work in its tasks, or on the driver."""

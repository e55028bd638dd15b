"""Spark: its session, datasets in a namespace, and work that runs in its tasks or on the driver."""

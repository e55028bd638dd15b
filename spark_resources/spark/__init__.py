"""Spark: its session, datasets in a namespace, and support for code in its tasks."""

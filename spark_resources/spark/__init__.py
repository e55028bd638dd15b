"""Spark: its session, datasets in a namespace, and what runs in its tasks."""

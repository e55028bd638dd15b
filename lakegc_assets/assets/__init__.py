"""The assets, by group: the graph that Dagster shows."""

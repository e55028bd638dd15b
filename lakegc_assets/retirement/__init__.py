"""Retirement of old marks and purge of old quarantines, so that marks don't pile up.

`mark_status` reads what the rules (`lakegc_assets.rules.retirement`) use; `retire` retires marks of one repository,
`old_quarantines` purges quarantines, and `retired_partitions` removes marks from Dagster. `fleet` retires those of
several repositories.
"""

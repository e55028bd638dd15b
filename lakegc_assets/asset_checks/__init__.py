"""Asset checks: the invariants and the brakes, as Dagster shows them."""

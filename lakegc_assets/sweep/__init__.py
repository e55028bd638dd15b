"""A sweep re-verifies the approved set, deletes it at the store's speed, and reports the outcome of each object.

before         preconditions, foreign_marks, require_backup, context
from approval  sweep: the order of effects, and what a crash after each leaves
  to report    reverify (what is live now), first_delete, round_loop, delete_rounds, report
while a round  head_watch, newly_retained, other_head_watch: what becomes live is kept
  deletes
quarantine     quarantine, undo (restores or purges)
in Dagster     metadata
"""

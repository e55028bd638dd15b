"""A sweep re-verifies the approved set, deletes it at the store's speed, and reports the outcome of each object.

preparation    preconditions, foreign_marks, require_backup, context
the sweep      sweep (the order of effects, and the state after a crash), reverify (what is live now), first_delete,
               round_loop, delete_rounds, other_sweeps (what they removed), report_writer, report (reads what
               it wrote)
during deletes head_watch, newly_retained, other_head_watch: keep objects that become live
quarantine     quarantine, undo (restores or purges)
for display    metadata (in Dagster), history (what all sweeps freed)
"""

"""A sweep re-verifies the approved set, deletes it at the store's speed, and reports the outcome of each object.

context.py        shared state of a sweep
reverify.py       what is live now, by today's rules and holds
delete_rounds.py  Spark jobs that delete, until every object has an outcome
report.py         the outcome of each object, and totals that must add up
"""

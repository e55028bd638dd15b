"""A sweep: what was approved is re-verified, deleted at the store's speed, and accounted for.

context.py        what every part works with
reverify.py       what is live now, by today's rules and holds
delete_rounds.py  Spark jobs that delete, until every object has its outcome
report.py         what became of each object, and the numbers that must add up
"""

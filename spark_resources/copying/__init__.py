"""Objects from one store to another, inside a task: looked at first, several at once, each with a line in a log.

Nothing is ever replaced, and every copy is compared with what was copied.
"""

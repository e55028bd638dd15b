"""Copy objects from one store to another inside a task: look each up first, copy several at once, log each.

Nothing is ever overwritten, and every copy is compared with its source.
"""

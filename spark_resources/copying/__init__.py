"""Copies objects from one store to another inside a task: looks each up first, copies several in parallel, logs each.

Nothing is ever overwritten, and every copy is compared with its source.
"""

"""Deleting many keys of a store inside a task: looked up again first, at a pace that it bears, each with a receipt.

Nothing here decides what may be deleted; it never touches a key that it wasn't given.
"""

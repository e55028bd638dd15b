"""Delete many keys of a store inside a task: look each up again, keep to a pace that the store bears, write receipts.

Nothing here decides what may be deleted, and only the given keys are ever touched.
"""

"""Delete many keys of a store inside a task: look each up again, adapt the rate to the store, write receipts.

Nothing here decides what may be deleted, and only the given keys are ever touched.
"""

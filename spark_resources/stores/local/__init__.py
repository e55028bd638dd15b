"""A local folder as a store."""

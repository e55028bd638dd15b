"""Checks whether lakegc can work here: the machine, the configuration, the lakeFS server, a repository and its store.

- `findings`: what a check reports
- `checks`: runs checks, one after the other or in parallel with a time limit
- `examination`: which checks there are, and which of them need the result of another
- `machine`, `folders`, `configuration`, `dagster_instance`: checks on this machine
- `server`, `repository`, `permissions`, `store`, `clocks`: checks over the network
"""

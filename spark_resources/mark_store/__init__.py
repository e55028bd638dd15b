"""lakegc's files in a namespace: marks, approvals, the lease and holds. Also reads the reference collector's marks."""

"""lakegc's files in a namespace: marks, approvals, the lease, holds; also the reference collector's layouts."""

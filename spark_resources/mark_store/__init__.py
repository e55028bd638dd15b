"""What lakegc keeps in a namespace: marks, approvals, the lease, holds; and the layouts of the reference collector."""

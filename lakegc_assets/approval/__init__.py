"""Approval of an expired set: proposals, preconditions, verification of the files, and the approval itself."""

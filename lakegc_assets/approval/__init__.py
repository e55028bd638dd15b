"""Approval of an expired set: what it is given for, what forbids it, which set it names, how it is kept."""

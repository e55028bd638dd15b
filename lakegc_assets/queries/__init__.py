"""Questions about a repository, answered from the files of its marks and sweeps. Nothing here changes anything.

history      what a finished mark recorded: commits, ranges, addresses, stored objects, and decisions by other rules
"""

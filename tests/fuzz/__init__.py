"""Fuzzing of everything that lakegc reads and others can write: tables, records, lists, listings and responses.

In reading order: `target` (what a target is, and which property every input must have), the targets by what they read
(`tables`, `messages`, `records`, `parquet_files`, `lists`, `responses`, `configuration`, `addresses`), `all_targets`,
`mutations` (changes to inputs that know their format), `__main__` (the command), `one_target` (a process of it), and
`replay` (a corpus once more, with compiled code).
"""

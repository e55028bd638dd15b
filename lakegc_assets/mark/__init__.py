"""How each asset of a mark is computed: the effects around the decisions in `rules`.

One module per asset, one function per module. Each takes a `MarkRun` and returns the `StepRecord` that is stored in the
mark.
"""

"""How each asset of a mark is computed: the effects around the decisions in `rules`.

One module an asset, one function a module; each gets a `MarkRun` and returns the `StepRecord` that the mark keeps.
"""

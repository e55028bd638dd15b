"""How each asset of a mark is computed: the effects around the decisions in `rules`.

The asset `x` is computed by one function of the module `x`, which takes a `MarkRun` and records the asset's step in the
mark. The other modules, by the asset that they belong to:

the run                  context, options, preconditions, repository_selection, reading_order
namespace_slices         candidates, full_listing, inventory_listing, incremental_listing, listed_objects
uncommitted_addresses    uncommitted_readings
retained_commits         holds_in_force, commit_graph
committed_addresses      metaranges, other_repositories, other_repository_heads, earlier_references,
                         table_notes
expired_set              keep_lookups, expiry_reasons, writer
  live or not            reference_status, incremental_comparison, missing_objects, dot_segments
  reasons to keep        keep_evidence, other_repositories, restaged_content, head_paths, path_probes, recheck,
                         addresses_on_hold
  for the review         totals, sample_objects, missed_by_incremental, changed_rules
earlier marks            mark_chain
display in Dagster       metadata, summaries, plots, over_time
"""

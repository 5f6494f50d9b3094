"""The house keepers: rescue, snapshot, prune, remind, tally; and, in every process, who notices that it is outdated."""

"""The house keepers: rescue, snapshot, prune, remind, tally."""

"""The house keepers: rescue and sweep."""

"""The only writer of a run's status: one door in, and one ending for every way a run ends."""

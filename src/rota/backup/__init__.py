"""Backup into one file and restore from it: the database, what artifacts contain and, if wanted, the vault's keys."""

"""Trigger → run."""

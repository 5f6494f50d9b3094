"""Fixtures: a workshop of background sessions, and a crew of workers."""

from support.workshop import crew, workshop

__all__ = ["crew", "workshop"]

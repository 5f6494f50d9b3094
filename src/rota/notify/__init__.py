"""Tells people what concerns them: in the bell, and outward."""

"""Patterns for a search by a part of a name."""


def holding(text: str) -> str:
    """A LIKE pattern for what holds this text as it is."""
    return "%" + text.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_") + "%"

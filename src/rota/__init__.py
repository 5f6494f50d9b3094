"""Rota, a duty roster for AI agents."""

__version__ = "0.1.0"

"""Rota for clients of the Model Context Protocol: its abilities as tools, each of which is a route of the API."""

"""Requests and answers of the API, field by field: a module for each thing."""

"""Helpers of the tests: processes, servers, agents and clients that several test modules use."""

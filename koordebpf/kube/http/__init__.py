"""Requests to an API server: transport, deadlines, back-off, errors."""

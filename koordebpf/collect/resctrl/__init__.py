"""Reads resctrl."""

"""Recordings and audits as an incident: one module for each part of the page."""

"""Tells pods that they are asked to leave."""

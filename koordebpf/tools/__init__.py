"""Engines of the commands: trace, top, plan, record, replay, doctor."""

"""Runtime hooks before a container starts, for a runtime that asks by NRI or through a proxy."""

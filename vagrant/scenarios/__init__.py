"""Stories of memory pressure, one a folder, and what plays them: `run`."""

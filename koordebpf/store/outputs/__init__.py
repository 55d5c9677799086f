"""Files that a person names for output: pages, recordings, and logs that grow."""

"""The strategies: a folder each, with everything of it. None imports another one."""

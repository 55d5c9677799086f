"""What resctrl is decided from."""

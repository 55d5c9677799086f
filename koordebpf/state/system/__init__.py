"""What system configuration is decided from."""

"""What this host allows, and how the agent protects and confines itself."""

"""What `koordebpf doctor` does: tries every signal of this host, and says what to change."""

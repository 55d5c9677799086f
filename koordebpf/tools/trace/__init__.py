"""What `koordebpf trace` does: follows the kernel's records, adds up stalls, and prints both."""

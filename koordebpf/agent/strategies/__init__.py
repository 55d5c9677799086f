"""The four strategies in a running agent: what each reads, writes and remembers between ticks."""

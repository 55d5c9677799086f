"""The page of `koordebpf top`: as one value, as lines as wide as the terminal, and on a screen of its own."""

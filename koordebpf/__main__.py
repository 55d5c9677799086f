"""`python -m koordebpf`."""

from koordebpf.cli import main

main()

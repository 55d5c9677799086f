"""What is said of all commands in one place: the objects that they print, their exit codes, their man pages."""

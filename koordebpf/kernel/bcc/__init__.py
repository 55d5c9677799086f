"""The child process that compiles the BPF programs with bcc and passes their fds on."""

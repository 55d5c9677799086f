"""An agent's configuration: its settings, the file they are written in, and what must not contradict."""

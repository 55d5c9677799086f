"""Open files, inotify and the event loop."""

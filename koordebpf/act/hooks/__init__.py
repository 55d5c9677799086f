"""What runtime hooks want beside cgroup files: values of processes."""

# Records of what was given, beside the journal of the writer. An agent without runtime hooks looks for them, and
# imports nothing else of this package where there are none.
SCORES = "oom-scores.json"
COOKIES = "core-cookies.json"

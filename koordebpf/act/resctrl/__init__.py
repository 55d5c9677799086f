"""resctrl groups and their tasks."""

# The record of the groups that were made, beside the journal of the writer.
GROUPS = "resctrl-groups.json"

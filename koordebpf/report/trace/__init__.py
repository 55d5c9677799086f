"""One kernel record as a line, and sums of many: what `trace` prints."""

"""`NodeView` → `Plan`. Pure: no clock, no file, no log."""

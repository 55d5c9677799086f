"""One file per condition: `NodeView` → `Verdict`. Pure; chooses no victims."""

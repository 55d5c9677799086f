"""Page cache: that of best-effort pods is limited while latency-sensitive pods lose theirs."""

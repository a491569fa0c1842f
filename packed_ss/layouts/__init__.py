"""Which rows a call has and who sees whom."""

"""Scripts that run as processes of their own, confined (`confine`): they import nothing of this package but each other."""

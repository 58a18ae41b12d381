"""What each replica holds, and how far to believe it."""

"""From maps to pictures."""

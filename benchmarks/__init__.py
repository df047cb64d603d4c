"""Speed and memory, as ratios to one plain gradient in the same run."""

"""From scores to claims: statistics of a comparison, and the figures of the paper to hold them against."""

"""Methods: each turns a query into maps."""

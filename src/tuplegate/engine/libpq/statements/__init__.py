"""What a statement takes and gives on a pooled connection: parameters, and rows within bounds."""

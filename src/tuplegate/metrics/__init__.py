"""What the service counts of itself: the table of metrics, cells to count in, memory that workers share, the text."""

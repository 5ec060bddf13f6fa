"""The connections of each target, and how what runs on them is ended."""

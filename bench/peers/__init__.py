"""The service beside what a user would otherwise pick, on one machine and in one run: `make bench-peers`."""

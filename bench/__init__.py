"""Measurements as ratios in one run: `make bench`. Nothing here runs in the tests."""

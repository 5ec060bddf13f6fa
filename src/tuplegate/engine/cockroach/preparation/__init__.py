"""Prepares a cluster for the service, and finds what it leaves open."""

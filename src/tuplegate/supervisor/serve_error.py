"""The error that keeps the service from starting."""


class ServeError(Exception):
    """The service cannot start; the message says why and what to do."""

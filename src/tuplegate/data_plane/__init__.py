"""The data plane: queries, streams and transactions over HTTP."""

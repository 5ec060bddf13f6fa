"""The client without async and await, made of `tuplegate.client.asynchronous`."""

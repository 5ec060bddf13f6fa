"""The client without async and await, made of `querygate.client.asynchronous`."""

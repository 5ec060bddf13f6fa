"""The supervisor of `tuplegate serve`: binds the sockets, starts the engine and the workers, and watches them."""

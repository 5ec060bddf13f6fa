"""The DB-API without async and await, made of `tuplegate.dbapi.asynchronous`."""

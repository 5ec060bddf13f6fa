"""The client, written with async and await. `querygate.client.synchronous` is made of it: see tools/sync_client.py."""

"""Routes each request to the engine, or the cell, that its database lives on."""

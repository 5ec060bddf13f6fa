# mypy: ignore-errors
"""SQL over HTTP as one writes it in an afternoon with FastAPI and asyncpg. Runs in the peer's own environment."""

import json
import os
from contextlib import asynccontextmanager

import asyncpg
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel


class Query(BaseModel):
    sql: str
    params: list = []


class Transaction(BaseModel):
    statements: list[str]


@asynccontextmanager
async def lifespan(app):
    async with asyncpg.create_pool(os.environ["DATABASE_URL"]) as pool:
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/query")
async def query(query: Query):
    rows = await app.state.pool.fetch(query.sql, *query.params)
    return {"rows": [dict(row) for row in rows]}


@app.post("/sql")
async def neon_query(request: Request):
    """The least of Neon's protocol: its driver sends every parameter as text, and reads every value as text."""
    body = await request.json()  # the driver does not say that it is JSON
    rows = await app.state.pool.fetch(body["query"], *(int(param) for param in body["params"]))
    names = list(rows[0].keys()) if rows else []
    return {
        "command": "SELECT",
        "rowCount": len(rows),
        "rows": [[str(value) for value in row.values()] for row in rows],
        "fields": [{"name": name, "dataTypeID": 23 if name == "id" else 25} for name in names],
        "rowAsArray": True,
    }


@app.post("/transaction")
async def transaction(transaction: Transaction):
    async with app.state.pool.acquire() as connection, connection.transaction():
        results = [await connection.fetch(sql) for sql in transaction.statements]
    return {"results": [[dict(row) for row in rows] for rows in results]}


@app.post("/stream")
async def stream(query: Query):
    async def lines():
        async with app.state.pool.acquire() as connection, connection.transaction():
            async for row in connection.cursor(query.sql, *query.params):
                yield json.dumps(dict(row), default=str) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")

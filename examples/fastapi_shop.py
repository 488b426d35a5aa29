"""A shop with FastAPI. One transaction writes an order, its job and the stock: all of them, or none.

uvicorn fastapi_shop:app
curl localhost:8000/orders --json '{"customer": "acme", "item": "tea", "pieces": 2}'
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, PositiveInt
from shop_tasks import confirm

import joex

TABLES = """
CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, pieces integer NOT NULL CHECK (pieces >= 0));
CREATE TABLE IF NOT EXISTS orders (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer  text NOT NULL,
    item      text NOT NULL REFERENCES stock,
    pieces    integer NOT NULL,
    confirmed boolean NOT NULL DEFAULT false
);
INSERT INTO stock VALUES ('tea', 5) ON CONFLICT DO NOTHING;
"""


class NewOrder(BaseModel):
    customer: str
    item: str
    pieces: PositiveInt


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(os.environ["JOEX_DATABASE_URL"]) as pool:
        await pool.execute(TABLES)
        app.state.pool = pool
        app.state.client = joex.Client(pool)
        yield


app = FastAPI(lifespan=lifespan)


# The transaction is in the function itself: a dependency would commit after its `yield`, which is after the answer.
@app.post("/orders", status_code=201)
async def place_order(new: NewOrder) -> dict[str, int]:
    try:
        async with app.state.pool.acquire() as connection, connection.transaction():
            order = await connection.fetchval(
                "INSERT INTO orders (customer, item, pieces) VALUES ($1, $2, $3) RETURNING id",
                *(new.customer, new.item, new.pieces),
            )
            await confirm.options(group=new.customer, connection=connection).submit(app.state.client, order=order)
            await connection.execute("UPDATE stock SET pieces = pieces - $2 WHERE item = $1", new.item, new.pieces)
    except asyncpg.IntegrityConstraintViolationError:
        raise HTTPException(409, f"there are not {new.pieces} pieces of {new.item}") from None
    return {"order": order}


@app.get("/orders/{order}")
async def show_order(order: int) -> dict[str, str | int | bool]:
    row = await app.state.pool.fetchrow("SELECT customer, item, pieces, confirmed FROM orders WHERE id = $1", order)
    if row is None:
        raise HTTPException(404, f"there is no order {order}")
    return dict(row)

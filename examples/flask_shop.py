"""A shop with Flask and SQLAlchemy. One transaction writes an order, its job and the stock: all of them, or none.

flask --app flask_shop run
curl localhost:5000/orders --json '{"customer": "acme", "item": "tea", "pieces": 2}'
"""

import os
from typing import Any

import sqlalchemy
from flask import Flask, abort, request
from pydantic import BaseModel, PositiveInt, ValidationError
from shop_tasks import confirm
from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import joex.sync

url = os.environ["JOEX_DATABASE_URL"]
engine = sqlalchemy.create_engine(sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"))
client = joex.sync.Client(url)  # its submissions are on the connections of sessions
app = Flask(__name__)


class Base(DeclarativeBase): ...


class Stock(Base):
    __tablename__ = "stock"
    item: Mapped[str] = mapped_column(primary_key=True)
    pieces: Mapped[int] = mapped_column(CheckConstraint("pieces >= 0"))


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    item: Mapped[str] = mapped_column(ForeignKey(Stock.item))
    pieces: Mapped[int]
    confirmed: Mapped[bool] = mapped_column(default=False)


class NewOrder(BaseModel):
    customer: str
    item: str
    pieces: PositiveInt


with Session(engine) as session, session.begin():
    Base.metadata.create_all(session.connection())
    session.execute(insert(Stock).values(item="tea", pieces=5).on_conflict_do_nothing())


@app.post("/orders")
def place_order() -> tuple[dict[str, Any], int]:
    try:
        new = NewOrder.model_validate(request.get_json())
    except ValidationError as error:
        return {"detail": error.errors(include_url=False, include_context=False)}, 422
    try:
        with Session(engine) as session, session.begin():
            order = Order(**new.model_dump())
            session.add(order)
            session.flush()  # now the order has its id
            confirm.options(group=new.customer, connection=session).submit(client, order=order.id)
            left = sqlalchemy.update(Stock).where(Stock.item == new.item).values(pieces=Stock.pieces - new.pieces)
            session.execute(left)
            return {"order": order.id}, 201
    except IntegrityError:
        return {"detail": f"there are not {new.pieces} pieces of {new.item}"}, 409


@app.get("/orders/<int:order>")
def show_order(order: int) -> dict[str, str | int | bool]:
    with Session(engine) as session:
        found = session.get(Order, order) or abort(404)
        return {
            "customer": found.customer,
            "item": found.item,
            "pieces": found.pieces,
            "confirmed": found.confirmed,
        }

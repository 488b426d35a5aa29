"""The tasks of the shops in this folder: joex executor --app shop_tasks:app."""

import joex

app = joex.App()


# The change and the end of the job commit together. So an order is confirmed once, even if a process dies.
@app.task("orders.confirm", retries=3, retry_delay="10s", timeout="1m")
async def confirm(ctx: joex.Context, order: int) -> None:
    async with ctx.transaction(result={"confirmed": order}) as connection:
        item = await connection.fetchval("UPDATE orders SET confirmed = true WHERE id = $1 RETURNING item", order)
        if item is None:
            raise joex.Fail(f"there is no order {order}")
        ctx.log.info("order %d: %s for %s", order, item, ctx.group)

import django

from .models import Order

if django.VERSION >= (6, 0):
    from django.tasks import task
else:  # the backport
    from django_tasks import task


@task(takes_context=True)
def confirm(context, order):
    found = Order.objects.get(pk=order)
    found.confirmed = True  # a run that is repeated changes nothing more
    found.save(update_fields=["confirmed"])
    context.run.log.info("order %d: %s for %s", order, found.item_id, found.customer)
    return {"confirmed": order}

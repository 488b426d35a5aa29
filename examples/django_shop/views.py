from django.db import IntegrityError, transaction
from django.db.models import F
from django.forms import modelform_factory
from django.http import JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_POST

from joex.django import options

from .models import Order, Stock
from .tasks import confirm

OrderForm = modelform_factory(Order, fields=["customer", "item", "pieces"])


@require_POST
def place_order(request):
    form = OrderForm(request.POST)
    if not form.is_valid():
        return JsonResponse(form.errors, status=422)
    try:
        with transaction.atomic():
            order = form.save()
            with options(group=order.customer):
                confirm.enqueue(order=order.pk)
            Stock.objects.filter(item=order.item_id).update(pieces=F("pieces") - order.pieces)
    except IntegrityError:
        return JsonResponse({"detail": f"there are not {order.pieces} pieces of {order.item_id}"}, status=409)
    return JsonResponse({"order": order.pk}, status=201)


@require_GET
def show_order(_request, pk):
    order = get_object_or_404(Order, pk=pk)
    return JsonResponse(
        {"customer": order.customer, "item": order.item_id, "pieces": order.pieces, "confirmed": order.confirmed}
    )

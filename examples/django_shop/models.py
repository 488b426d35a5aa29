from django.core.validators import MinValueValidator
from django.db import models


class Stock(models.Model):
    item = models.TextField(primary_key=True)
    pieces = models.PositiveIntegerField()  # PostgreSQL refuses a negative number

    class Meta:
        db_table = "stock"

    def __str__(self):
        return f"{self.pieces} pieces of {self.item}"


class Order(models.Model):
    customer = models.TextField()
    item = models.ForeignKey(Stock, models.PROTECT, db_column="item")
    pieces = models.PositiveIntegerField(validators=[MinValueValidator(1)])
    confirmed = models.BooleanField(default=False)

    class Meta:
        db_table = "orders"

    def __str__(self):
        return f"order {self.pk}: {self.pieces} pieces of {self.item_id} for {self.customer}"

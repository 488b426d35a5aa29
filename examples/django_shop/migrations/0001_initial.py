from django.core.validators import MinValueValidator
from django.db import migrations, models


class Migration(migrations.Migration):
    operations = (
        migrations.CreateModel(
            "Stock",
            fields=[
                ("item", models.TextField(primary_key=True, serialize=False)),
                ("pieces", models.PositiveIntegerField()),
            ],
            options={"db_table": "stock"},
        ),
        migrations.CreateModel(
            "Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("customer", models.TextField()),
                ("item", models.ForeignKey("django_shop.stock", models.PROTECT, db_column="item")),
                ("pieces", models.PositiveIntegerField(validators=[MinValueValidator(1)])),
                ("confirmed", models.BooleanField(default=False)),
            ],
            options={"db_table": "orders"},
        ),
        migrations.RunSQL("INSERT INTO stock VALUES ('tea', 5)", migrations.RunSQL.noop),
    )

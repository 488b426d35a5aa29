from django.db import migrations, models


class Migration(migrations.Migration):
    operations = (
        migrations.CreateModel(
            "Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("item", models.TextField()),
            ],
        ),
        # Migrations may use the schema of Joex: it comes before them.
        migrations.RunSQL("SELECT joex.submit('of a migration')", migrations.RunSQL.noop),
    )

"""The application of Django: ``joex.django`` in ``INSTALLED_APPS``."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import pre_migrate


class JoexConfig(AppConfig):
    """Joex as an application of Django."""

    name = "joex.django"
    label = "joex"
    verbose_name = "Joex"

    def ready(self) -> None:
        """Let ``migrate`` install the schema of Joex."""
        from joex.django.database import install_schema  # noqa: PLC0415 - not before the applications are loaded

        pre_migrate.connect(install_schema, sender=self)

"""The app of a Django project: ``joex executor --app joex.django.app:app``, which ``manage.py joex executor`` runs too.

It has the tasks of Django, and their schedules. To run other tasks of Joex beside them, write such a module yourself.
"""

from __future__ import annotations

import django
from django.apps import apps
from django.conf import settings

import joex

if not apps.ready:
    django.setup()

from joex.django.runs import add_tasks

# (Its name is the owner of the schedules: two projects on one database must not remove each other's.)
app = joex.App(str(getattr(settings, "SETTINGS_MODULE", "django")).partition(".")[0])
add_tasks(app)

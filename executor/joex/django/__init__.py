"""Django: a backend for its tasks, a command of ``manage.py``, the admin.

Add ``joex.django`` to ``INSTALLED_APPS``. Then ``manage.py migrate`` installs the schema of Joex, also in test
databases; ``manage.py joex`` runs the commands of Joex; and the admin shows jobs. To run Django's tasks as jobs, set::

    TASKS = {"default": {"BACKEND": "joex.django.backend.JoexBackend"}}
"""

from joex.django.options import options
from joex.django.schedules import periodic

__all__ = ["options", "periodic"]

import os

import django
from psycopg.conninfo import conninfo_to_dict

_database = conninfo_to_dict(os.environ["JOEX_DATABASE_URL"])

DATABASES = {
    "default": {"ENGINE": "django.db.backends.postgresql", "NAME": _database.pop("dbname"), "OPTIONS": _database}
}
INSTALLED_APPS = ["joex.django", "django_shop"]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")
TASKS = {"default": {"BACKEND": "joex.django.backend.JoexBackend"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "django_shop.urls"
SECRET_KEY = "only for trying"
DEBUG = True
USE_TZ = True

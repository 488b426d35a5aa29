import os

from psycopg.conninfo import conninfo_to_dict

_database = conninfo_to_dict(os.environ["JOEX_DATABASE_URL"])

# The database of Joex: a transaction is in one database alone.
DATABASES = {
    "default": {"ENGINE": "django.db.backends.postgresql", "NAME": _database.pop("dbname"), "OPTIONS": _database}
}
INSTALLED_APPS = ["django_shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "django_shop.urls"
SECRET_KEY = "only for trying"
DEBUG = True
USE_TZ = True

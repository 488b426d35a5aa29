import os

import django
from psycopg.conninfo import conninfo_to_dict

_database = conninfo_to_dict(os.environ["JOEX_DATABASE_URL"])

DATABASES = {
    "default": {"ENGINE": "django.db.backends.postgresql", "NAME": _database.pop("dbname"), "OPTIONS": _database}
}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *([] if django.VERSION >= (6, 0) else ["django_tasks"]),
    "joex.django",
    "django_project.orders",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
TASKS = {
    "default": {
        "BACKEND": "joex.django.backend.JoexBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"submitter": "the shop"},
    },
    "late": {"BACKEND": "joex.django.backend.JoexBackend", "QUEUES": [], "OPTIONS": {"on_commit": "default"}},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "django_project.urls"
SECRET_KEY = "only for tests"
USE_TZ = True
TIME_ZONE = "Europe/Zurich"

"""The project of Django in ``django_project``: its tests, by Django's test runner, in a database that this makes."""

from pathlib import Path

from tests.support.commands import done
from tests.support.waiting import PATIENCE

PROJECT = {"DJANGO_SETTINGS_MODULE": "django_project.settings"}
HERE = Path(__file__).parent


async def test_the_tests_of_the_project_pass(database_url: str) -> None:
    await done("python -m django test --noinput django_project", HERE, database_url, within=5 * PATIENCE, **PROJECT)

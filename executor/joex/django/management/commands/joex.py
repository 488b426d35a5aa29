"""``manage.py joex``: the commands of Joex, on the database of Django."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from joex import cli
from joex.cli.sigterm import end_at_sigterm
from joex.django.database import database_url
from joex.errors import ConfigError


class Command(BaseCommand):
    """The command."""

    help = "Runs a command of joex on the database of Django, such as executor, jobs or stats."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Take all arguments as they are."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the command, and its arguments")

    def run_from_argv(self, argv: list[str]) -> None:
        """End at SIGTERM from now on, as the command ``joex`` does."""
        end_at_sigterm()
        super().run_from_argv(argv)

    def handle(self, *_: Any, arguments: list[str], **__: Any) -> None:
        """Run it. An executor runs the tasks of Django, unless the arguments name an app."""
        try:
            os.environ["JOEX_DATABASE_URL"] = database_url()
        except ConfigError as error:
            raise CommandError(str(error)) from error
        given = arguments or ["--help"]
        if given[0] == "executor" and not any(each.partition("=")[0] == "--app" for each in given):
            given = [*given, "--app", "joex.django.app:app"]
        if code := cli.call("manage.py joex", given):
            sys.exit(code)

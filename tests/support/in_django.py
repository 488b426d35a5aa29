"""A process that is inside of a project of Django: run this before modules are imported that need one."""

from tests.support.image import ROOT

IN_DJANGO = f"""
import os, sys
sys.path.append({str(ROOT / "tests" / "acceptance")!r})
os.environ |= {{"DJANGO_SETTINGS_MODULE": "django_project.settings", "JOEX_DATABASE_URL": "postgresql://nowhere/none"}}
import django
django.setup()
"""

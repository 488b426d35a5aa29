"""A project of Django. Its tests test `joex.django`, by the test runner of each Django that Joex supports."""

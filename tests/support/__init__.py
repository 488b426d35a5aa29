"""Code that the tests share."""

"""The option ``--cluster``. pytest takes options from what it loads first: ``tests/conftest.py`` imports this one."""

import pytest

VARIABLE = "JOEX_TEST_CLUSTER"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--cluster",
        metavar="auto|local|kind|context[:NAME]",
        help="where the tests of the tier cluster run: auto takes kind if it is usable, else local, processes of this "
        f"machine; a context of your kubeconfig is taken only if it is named; default: ${VARIABLE}, or auto",
    )

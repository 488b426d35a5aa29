"""The real node that all stories share, and their fixtures.

Stories run in the order of their file, as a user would act: the first installs, the last uninstalls.
"""

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.node import MACHINE
from tests.support.node.node import Node
from tests.support.node.story import Story, Times

_TIMES = pytest.StashKey[Times]()


def pytest_configure(config: pytest.Config) -> None:
    """Collect durations."""
    config.stash[_TIMES] = Times()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the durations."""
    if lines := config.stash[_TIMES].lines():
        terminalreporter.section("times on the node")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """The cluster of one node."""
    if not os.environ.get(MACHINE):
        pytest.fail("a real node lives in a machine of its own: run these stories with `make test-node`", pytrace=False)
    node = Node()
    try:
        node.start()
        yield node
    finally:
        node.stop()


@pytest.fixture
async def story(request: pytest.FixtureRequest, node: Node) -> AsyncIterator[Story]:
    """A story on the node; afterwards no pod of it may be left Terminating."""
    async with Story(node, request.config.stash[_TIMES], request.node.name) as story:
        yield story

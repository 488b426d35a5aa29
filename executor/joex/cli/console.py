"""``joex console``: the web console."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from functools import partial

from joex.cli.database import database
from joex.cli.flags import with_settings
from joex.cli.options import DatabaseUrl
from joex.cli.signals import reacting_to_signals
from joex.config import load, load_settings
from joex.console.settings import ConsoleSettings
from joex.event_loop import new_event_loop
from joex.http.certificate import Certificate, certificate_of
from joex.http.listening import address_of, listen
from joex.log_stream import unblocked

_log = logging.getLogger("joex")
_PANEL = "Settings: a flag, or JOEX_CONSOLE_<FLAG> in the environment"


@partial(with_settings, model=ConsoleSettings, panel=_PANEL)
def console(
    *,
    database_url: DatabaseUrl = None,
    flags: dict[str, str | None],
) -> None:
    """Serve the web console: who waits, for what, and why.

    Browsers on this machine need no sign-in, unless JOEX_API_TOKEN or --proxies is set. All others sign in with a token
    of 'joex tokens create', or through a proxy. It runs until SIGTERM or Ctrl-C.
    """
    import jinja2  # noqa: F401, PLC0415 - if its extra is missing, the command ends before it has started anything

    from joex.observe.log_lines import capture_logging  # noqa: PLC0415 - slow to import

    settings, of_executors = load(ConsoleSettings, flags), load_settings({"database_url": database_url})
    token = None if of_executors.api_token is None else of_executors.api_token.get_secret_value()
    certificate = certificate_of(settings.http_tls_certificate, settings.http_tls_key, "JOEX_CONSOLE_")
    with (
        unblocked(sys.stderr) as stream,
        listen(settings.http_address, "JOEX_CONSOLE_HTTP_ADDRESS", "set another port (0: any free one)") as listener,
        database(of_executors.url) as url,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        capture_logging(settings, stream)
        runner.run(_serve(settings, token, url, listener, certificate))


async def _serve(
    settings: ConsoleSettings, token: str | None, url: str, listener: socket.socket, certificate: Certificate | None
) -> None:
    from joex.console.app import create_console  # noqa: PLC0415 - as above
    from joex.console.sign_in import Access  # noqa: PLC0415
    from joex.http.connection_shares import SharingClient  # noqa: PLC0415
    from joex.http.server import serve  # noqa: PLC0415

    access = Access(
        token=token,
        proxies=settings.proxies,
        user_header=settings.user_header,
        user_scopes=frozenset(settings.user_scopes),
        operators=frozenset(settings.operators),
    )
    async with SharingClient(url) as client:
        serving = asyncio.create_task(serve(create_console(client, access), listener, certificate))
        scheme = "http" if certificate is None else "https"
        with reacting_to_signals(lambda _: serving.cancel()):
            _log.info("the console is on %s://%s/", scheme, address_of(listener))
            await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()

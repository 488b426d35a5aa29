"""The console in the chart, rendered by the real helm."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from joex.console.settings import ConsoleSettings
from tests.support.cluster.chart import CHART, OLDEST, Key, pod_templates, render
from tests.support.cluster.connection import Object
from tests.support.cluster.helm import Helm
from tests.support.pages import DOCS, files


async def test_the_console_understands_its_settings_and_gets_the_database_of_the_first_pool(
    helm: Helm, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = (
        *("console.enabled=true", "database.existingSecret=mine", "database.existingSecretKey=dsn"),
        *("console.tokenSecret=owner", "console.proxies={10.0.0.0/8,fd00::/8}", "console.userHeader=X-Forwarded-Email"),
        "console.tlsSecret=console-tls",
        *("console.userScopes={view,payloads}", "console.operators={ann,bob}", "console.logLevel=debug"),
    )
    rendered = await render(helm, *values)
    container, given = _console(rendered)
    assert (container["command"], container["args"], container["image"]) == (["joex"], ["console"], "joex:0.1.0")
    assert given.pop("JOEX_DATABASE_URL") == {"secretKeyRef": {"name": "mine", "key": "dsn"}}
    assert given.pop("JOEX_API_TOKEN") == {"secretKeyRef": {"name": "owner", "key": "token"}}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert {name.removeprefix("JOEX_CONSOLE_").lower() for name in given} == ConsoleSettings.model_fields.keys()
    settings = ConsoleSettings()
    assert (settings.http_address, settings.log_format, settings.log_level) == ("0.0.0.0:7880", "json", "debug")
    assert [str(network) for network in settings.proxies] == ["10.0.0.0/8", "fd00::/8"]
    assert (settings.user_header, settings.user_scopes) == ("X-Forwarded-Email", ["view", "payloads"])
    assert settings.operators == ["ann", "bob"]
    [mount] = [one for one in container["volumeMounts"] if one["name"] == "tls"]
    files = (settings.http_tls_certificate, settings.http_tls_key)
    assert files == tuple(f"{mount['mountPath']}/{name}" for name in ("tls.crt", "tls.key"))
    volumes = pod_templates(rendered)["joex-console"]["spec"]["volumes"]
    assert {"name": "tls", "secret": {"secretName": "console-tls"}} in volumes
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"


async def test_without_values_of_its_own_the_console_has_no_token_and_believes_no_proxy(
    helm: Helm, monkeypatch: pytest.MonkeyPatch
) -> None:
    container, given = _console(await render(helm, "console.enabled=true"))
    assert given.pop("JOEX_DATABASE_URL") == {"secretKeyRef": {"name": "joex-postgresql", "key": "url"}}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = ConsoleSettings()
    assert (settings.proxies, settings.user_scopes, settings.operators) == ([], ["view"], [])
    assert "JOEX_API_TOKEN" not in given
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTP"


def _console(objects: dict[Key, Object]) -> tuple[Object, dict[str, Any]]:
    """The console's container, and its variables: their values, or where these come from."""
    [container] = pod_templates(objects)["joex-console"]["spec"]["containers"]
    return container, {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


async def test_the_console_is_found_by_its_service_and_its_network_policy(helm: Helm) -> None:
    rendered = await render(helm, "console.enabled=true", "networkPolicy.enabled=true")
    template = pod_templates(rendered)["joex-console"]
    labels, [port] = template["metadata"]["labels"], template["spec"]["containers"][0]["ports"]
    service, policy = rendered["Service", "joex-console"]["spec"], rendered["NetworkPolicy", "joex-console"]["spec"]
    assert service["selector"].items() <= labels.items()
    assert [(one["name"], one["targetPort"]) for one in service["ports"]] == [("http", port["name"])]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["ingress"] == [{"ports": [{"port": port["name"], "protocol": "TCP"}]}]
    [of_database] = rendered["NetworkPolicy", "joex-postgresql"]["spec"]["ingress"]
    admitted = [one["podSelector"].get("matchLabels", {}) for one in of_database["from"]]
    assert any(one and one.items() <= labels.items() for one in admitted)
    for own in (service["selector"], policy["podSelector"]["matchLabels"]):
        assert not own.items() <= pod_templates(rendered)["joex-operator"]["metadata"]["labels"].items()


async def test_the_documented_console_behind_a_proxy_admits_the_proxy_alone(helm: Helm, tmp_path: Path) -> None:
    values = tmp_path / "console.yaml"
    values.write_text(files(DOCS / "reference" / "chart.md")["console.yaml"])
    text = await helm("template", "joex", CHART, "--kube-version", OLDEST, "--values", values, namespace="prod")
    rendered = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}
    [rule] = rendered["NetworkPolicy", "joex-console"]["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "oauth2-proxy"}}}]
    _, given = _console(rendered)
    assert given["JOEX_CONSOLE_PROXIES"] == "10.244.0.0/16"
    assert given["JOEX_CONSOLE_OPERATORS"] == "ann@example.org"

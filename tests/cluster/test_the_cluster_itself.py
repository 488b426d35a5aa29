"""The tests of the operator rely on the tests' own cluster: these tests check that it works like Kubernetes."""

import base64
import doctest
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import asyncpg
import pytest

from tests.support.cluster.api import Api
from tests.support.cluster.connection import ApiError, Object
from tests.support.cluster.helm import Helm
from tests.support.cluster.kubelet import images, process, rewriting
from tests.support.cluster.kubelet.images import Image
from tests.support.cluster.local import LocalCluster
from tests.support.cluster.namespaces import Namespaces
from tests.support.cluster.nodes import LocalNode
from tests.support.cluster.objects import (
    AT_STATE,
    FOREVER,
    IS_UP,
    POLITE,
    STUBBORN,
    container_status,
    deployment,
    is_available,
    is_in,
    is_ready,
    pod,
    python,
    restarted,
    terminated,
    up,
    waits,
)
from tests.support.cluster.processes import marked, runs
from tests.support.cluster.providers import Cluster
from tests.support.cluster.system import System
from tests.support.waiting import eventually

EVERYWHERE = "0.0.0.0"  # noqa: S104 - in a pod
SWITCH = """
import os, signal
signal.signal(signal.SIGUSR1, lambda number, frame: open("/state/up", "w"))
signal.signal(signal.SIGUSR2, lambda number, frame: os.remove("/state/up"))
while True:
    signal.pause()
"""


async def last_words(api: Api, name: str, namespace: str) -> Any:
    """The termination message of a pod, in JSON."""
    end = terminated(await api.until("pods", name, is_in("Succeeded", "Failed"), namespace))
    assert end
    assert end["exitCode"] == 0, end
    return json.loads(end["message"])


async def test_a_deployment_becomes_a_process_with_its_environment(cluster: Cluster, api: Api, namespace: str) -> None:
    fields = {"POD": "metadata.name", "SPACE": "metadata.namespace", "UID": "metadata.uid", "IP": "status.podIP"}
    fields["APP"] = "metadata.labels['app']"
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    env.append({"name": "WHERE", "value": "$(SPACE)/$(POD) $(UNKNOWN) $$(POD)"})
    code = "import json, os; print(json.dumps(dict(os.environ)), flush=True); open('/state/up', 'w');" + FOREVER
    await api.create(deployment("one", up(code, env=env)), namespace)
    await api.until("deployments", "one", is_available(1), namespace)
    [made] = await api.get_all("pods", namespace, labels="app=one")
    seen = json.loads(await cluster.log(api, made))
    name = made["metadata"]["name"]
    assert (seen["POD"], seen["SPACE"], seen["UID"]) == (name, namespace, made["metadata"]["uid"])
    assert (seen["IP"], seen["APP"]) == (made["status"]["podIP"], "one")
    assert seen["WHERE"] == f"{namespace}/{name} $(UNKNOWN) $(POD)"
    assert seen["HOSTNAME"] == name


async def test_secrets_and_config_maps_come_as_variables_and_as_files(api: Api, namespace: str) -> None:
    hidden = {"password": base64.b64encode(b"hunter2").decode()}
    await api.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hidden"}, "data": hidden}, namespace)
    plain = {"COLOUR": "green", "joex.toml": "pool = 4"}
    await api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plain"}, "data": plain}, namespace)
    code = """
import json, os, pathlib
words = {name: os.environ.get(name) for name in ("PASSWORD", "MY_COLOUR", "ABSENT", "FILE")}
words["file"] = pathlib.Path(os.environ["FILE"]).read_text()
words["secret"] = pathlib.Path("/etc/hidden/word").read_text()
words["label"] = pathlib.Path("/etc/about/labels").read_text()
open("/dev/termination-log", "w").write(json.dumps(words))
"""
    absent = {"name": "nothing", "key": "x", "optional": True}
    env = [
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "password"}}},
        {"name": "ABSENT", "valueFrom": {"secretKeyRef": absent}},
        {"name": "FILE", "value": "/etc/joex/joex.toml"},
    ]
    mounts = [("plain", "/etc/joex"), ("hidden", "/etc/hidden"), ("about", "/etc/about")]
    container = python(
        code,
        env=env,
        envFrom=[{"prefix": "MY_", "configMapRef": {"name": "plain"}}],
        volumeMounts=[{"name": name, "mountPath": path} for name, path in mounts],
    )
    volumes = [
        {"name": "plain", "configMap": {"name": "plain"}},
        {"name": "hidden", "secret": {"secretName": "hidden", "items": [{"key": "password", "path": "word"}]}},
        {"name": "about", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ]
    manifest = pod("reader", container, volumes=volumes, restartPolicy="Never")
    manifest["metadata"]["labels"] = {"a": "b"}
    await api.create(manifest, namespace)
    said = await last_words(api, "reader", namespace)
    assert (said["PASSWORD"], said["MY_COLOUR"], said["ABSENT"]) == ("hunter2", "green", None)
    assert (said["file"], said["secret"], said["label"]) == ("pool = 4", "hunter2", 'a="b"')


async def test_a_container_waits_for_the_secret_that_it_names(api: Api, namespace: str) -> None:
    env = [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "late", "key": "word"}}}]
    code = "import json, os; open('/dev/termination-log', 'w').write(json.dumps(os.environ['WORD']))"
    await api.create(pod("waiter", python(code, env=env), restartPolicy="Never"), namespace)

    await api.until("pods", "waiter", waits("CreateContainerConfigError"), namespace)
    late = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"}, "stringData": {"word": "here"}}
    await api.create(late, namespace)
    assert await last_words(api, "waiter", namespace) == "here"


async def test_init_containers_run_one_after_the_other_before_the_others(api: Api, namespace: str) -> None:
    step = "open('/state/steps', 'a').write({!r})"
    steps = [python(step.format(name), volumeMounts=[AT_STATE]) | {"name": name} for name in ("first", "second")]
    code = "import json; said = open('/state/steps').read(); open('/dev/termination-log', 'w').write(json.dumps(said))"
    main = python(code, volumeMounts=[AT_STATE])
    await api.create(pod("steps", main, initContainers=steps, restartPolicy="Never"), namespace)
    assert await last_words(api, "steps", namespace) == "firstsecond"
    ended = await api.until("pods", "steps", is_in("Succeeded"), namespace)
    assert [one["state"]["terminated"]["exitCode"] for one in ended["status"]["initContainerStatuses"]] == [0, 0]


async def test_a_probe_decides_whether_a_pod_is_ready(local_cluster: LocalCluster, api: Api, namespace: str) -> None:
    await api.create(pod("switch", up(SWITCH)), namespace)
    running = await api.until("pods", "switch", is_in("Running"), namespace)
    assert not is_ready(running)
    pid = local_cluster.node_of(running).pid(running)
    await eventually(lambda: _catches(pid, signal.SIGUSR2), why="the process has installed its handlers")
    os.kill(pid, signal.SIGUSR1)
    await api.until("pods", "switch", is_ready, namespace)
    os.kill(pid, signal.SIGUSR2)
    found = await api.until("pods", "switch", lambda found: not is_ready(found), namespace)
    assert (found["status"]["phase"], container_status(found)["restartCount"]) == ("Running", 0)


def _catches(pid: int, number: int) -> bool:
    lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
    [caught] = [line.split()[1] for line in lines if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (number - 1) & 1)


async def test_pods_listen_on_the_same_port_and_are_probed_by_http_and_tcp(api: Api, namespace: str) -> None:
    serve = {
        "name": "main",
        "image": "joex:test",
        "command": ["python", "-m", "http.server", "8080", "--bind", EVERYWHERE, "--directory", "/state"],
        "ports": [{"name": "http", "containerPort": 8080}],
        "volumeMounts": [AT_STATE],
        "startupProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 30},
        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1},
    }
    await api.create(deployment("web", serve, replicas=2), namespace)
    await api.until("deployments", "web", is_available(2), namespace)
    pods = await api.get_all("pods", namespace, labels="app=web")
    assert len({found["status"]["podIP"] for found in pods}) == 2


SERVE = """
import http.server as web
web.test(web.SimpleHTTPRequestHandler, port=8080, bind="0.0.0.0")
"""
FETCH = """
import json, sys, urllib.request
said = urllib.request.urlopen(sys.argv[1], timeout=10).status
open("/dev/termination-log", "w").write(json.dumps(said))
"""


async def test_a_service_is_reached_by_its_name(api: Api, namespace: str) -> None:
    serve = up("open('/state/up', 'w'); " + SERVE)
    await api.create(deployment("web", serve), namespace)
    spec = {"selector": {"app": "web"}, "ports": [{"port": 8000, "targetPort": 8080}]}
    await api.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}, namespace)
    await api.until("deployments", "web", is_available(1), namespace)
    asker = python(FETCH)
    asker["command"].append(f"http://web.{namespace}.svc.cluster.local:8000/")
    await api.create(pod("asker", asker, restartPolicy="OnFailure"), namespace)
    assert await last_words(api, "asker", namespace) == 200


async def test_a_container_that_fails_its_liveness_probe_is_restarted(api: Api, namespace: str) -> None:
    probe = {"exec": {"command": ["test", "-e", "/state/up"]}, "periodSeconds": 1, "failureThreshold": 1}
    hook = {"preStop": {"exec": {"command": ["touch", "/state/up"]}}}
    code = "import os; os.path.exists('/state/up') and open('/state/ready', 'w');" + FOREVER
    ready = {**IS_UP, "exec": {"command": ["test", "-e", "/state/ready"]}}
    container = python(code, volumeMounts=[AT_STATE], livenessProbe=probe, lifecycle=hook, readinessProbe=ready)
    await api.create(pod("sick", container), namespace)
    found = await api.until("pods", "sick", restarted(1), namespace)
    assert container_status(found)["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGTERM


async def test_a_killed_container_is_restarted_in_place(local_cluster: LocalCluster, api: Api, namespace: str) -> None:
    await api.create(pod("victim", up(POLITE)), namespace)
    before = await api.until("pods", "victim", is_ready, namespace)
    local_cluster.node_of(before).kill(before, out_of_memory=True)
    after = await api.until("pods", "victim", restarted(1), namespace)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    ended = container_status(after)["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


async def test_a_container_that_always_fails_backs_off(api: Api, namespace: str) -> None:
    await api.create(pod("loop", python("raise SystemExit(3)")), namespace)

    def backs_off(found: Object) -> bool:
        state = container_status(found)
        return (
            bool(state["restartCount"] >= 2) and state["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
        )

    found = await api.until("pods", "loop", backs_off, namespace)
    assert container_status(found)["lastState"]["terminated"]["exitCode"] == 3
    assert found["status"]["phase"] == "Running"


@pytest.mark.parametrize(("code", "exit_code"), [(POLITE, 0), (STUBBORN, 137)], ids=["polite", "stubborn"])
async def test_a_deleted_pod_is_asked_to_end_and_killed_after_its_grace(
    api: Api, namespace: str, code: str, exit_code: int
) -> None:
    await api.create(pod("guest", up(code), terminationGracePeriodSeconds=2), namespace)
    await api.until("pods", "guest", is_ready, namespace)
    await api.delete("pods", "guest", namespace)
    ended = await api.until("pods", "guest", terminated, namespace)
    assert ended["metadata"]["deletionGracePeriodSeconds"] == 2
    end = terminated(ended)
    assert end
    assert end["exitCode"] == exit_code
    assert end.get("message") == (None if exit_code else "asked to end")
    await api.until("pods", "guest", lambda found: found is None, namespace)


async def test_an_evicted_pod_has_failed_and_stays_to_be_seen(
    local_cluster: LocalCluster, api: Api, namespace: str
) -> None:
    await api.create(pod("evicted", up(STUBBORN)), namespace)
    before = await api.until("pods", "evicted", is_ready, namespace)
    node = local_cluster.node_of(before)
    pid = node.pid(before)
    node.evict(before)
    found = await api.until("pods", "evicted", is_in("Failed"), namespace)
    assert found["status"]["reason"] == "Evicted"
    assert "DisruptionTarget" in {condition["type"] for condition in found["status"]["conditions"]}
    assert not runs(pid)
    await api.delete("pods", "evicted", namespace)
    await api.until("pods", "evicted", lambda found: found is None, namespace)


async def test_a_silent_node_is_not_ready_and_its_processes_go_on(
    api: Api, namespace: str, own_node: LocalNode
) -> None:
    await api.create(pod("far", up(POLITE), nodeSelector=own_node.pod_selector), namespace)
    before = await api.until("pods", "far", is_ready, namespace)
    pid = own_node.pid(before)
    own_node.silence()
    await api.until("nodes", own_node.name, lambda found: not is_ready(found))
    await api.until("pods", "far", lambda found: not is_ready(found), namespace)
    assert runs(pid)
    own_node.resume()
    await api.until("nodes", own_node.name, is_ready)
    after = await api.until("pods", "far", is_ready, namespace)
    assert container_status(after)["restartCount"] == 0
    assert own_node.pid(after) == pid


async def test_a_node_that_crashed_starts_its_pods_anew(api: Api, namespace: str, own_node: LocalNode) -> None:
    await api.create(pod("far", up(POLITE), nodeSelector=own_node.pod_selector), namespace)
    before = await api.until("pods", "far", is_ready, namespace)
    pid = own_node.pid(before)
    own_node.crash()
    assert not runs(pid)
    own_node.start()
    after = await api.until("pods", "far", restarted(1), namespace)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_everything_goes_on_when_the_api_server_was_away(
    local_cluster: LocalCluster, api: Api, namespace: str
) -> None:
    await api.create(deployment("steady", up(POLITE)), namespace)
    await api.until("deployments", "steady", is_available(1), namespace)
    [before] = await api.get_all("pods", namespace, labels="app=steady")
    local_cluster.control_plane.stop_api(grace=0)
    local_cluster.node_of(before).kill(before)
    local_cluster.control_plane.start_api()
    name = before["metadata"]["name"]
    await api.until("pods", name, restarted(1), namespace)
    await api.patch("deployments", "steady", {"spec": {"replicas": 2}}, namespace, part="scale")
    await api.until("deployments", "steady", is_available(2), namespace)


ASK = """
import json
from kubernetes import client, config
config.load_config()
core, said = client.CoreV1Api(), {}
for kind in ("config_map", "secret"):
    try:
        getattr(core, f"list_namespaced_{kind}")("%s")
        said[kind] = "allowed"
    except client.ApiException as error:
        said[kind] = error.reason
open("/dev/termination-log", "w").write(json.dumps(said))
"""


async def test_a_service_account_may_do_what_rbac_allows_it(api: Api, namespace: str) -> None:
    rbac = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
    reader = {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": "reader"}, "rules": rules}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "worker", "namespace": namespace}],
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "worker"}}
    for manifest in (account, reader, binding):
        await api.create(manifest, namespace)
    manifest = pod("asker", python(ASK % namespace), serviceAccountName="worker", restartPolicy="Never")
    await api.create(manifest, namespace)
    assert await last_words(api, "asker", namespace) == {"config_map": "allowed", "secret": "Forbidden"}


async def test_a_pod_without_a_token_does_not_get_one(api: Api, namespace: str) -> None:
    code = """
import json, os
named = "KUBECONFIG" in os.environ or os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token")
open("/dev/termination-log", "w").write(json.dumps(named))
"""
    manifest = pod("stranger", python(code), automountServiceAccountToken=False, restartPolicy="Never")
    await api.create(manifest, namespace)
    assert await last_words(api, "stranger", namespace) is False


async def test_helm_installs_and_removes_a_chart(api: Api, helm: Helm, namespace: str, tmp_path: Path) -> None:
    chart = tmp_path / "tiny"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: tiny\nversion: 0.1.0\n")
    manifest = deployment("{{ .Release.Name }}", up(POLITE))
    (chart / "templates" / "deployment.yaml").write_text(json.dumps(manifest))
    await helm("install", "tiny", chart, "--wait", "--timeout", "60s", namespace=namespace)
    found = await api.get("deployments", "tiny", namespace)
    assert found["status"]["availableReplicas"] == 1
    await helm("uninstall", "tiny", namespace=namespace)
    await api.until_all("pods", lambda pods: not pods, namespace)


async def test_a_restricted_namespace_refuses_what_the_standard_forbids(api: Api, namespaces: Namespaces) -> None:
    namespace = await namespaces.make({"pod-security.kubernetes.io/enforce": "restricted"})
    with pytest.raises(ApiError, match='violates PodSecurity "restricted') as refused:
        await api.create(pod("free", up(POLITE)), namespace)
    assert refused.value.code == 403
    dropped = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    modest = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    await api.create(pod("modest", up(POLITE, securityContext=dropped), securityContext=modest), namespace)
    await api.until("pods", "modest", is_ready, namespace)


async def test_an_image_says_what_runs_and_one_that_nobody_knows_does_not_start(
    local_cluster: LocalCluster, api: Api, namespace: str
) -> None:
    code = "import json, sys; open('/dev/termination-log', 'w').write(json.dumps(sys.argv[1:]))"
    local_cluster.set_image("echo", Image(["python", "-c", code]))
    image = {"name": "main", "args": ["$(WHO)", EVERYWHERE], "env": [{"name": "WHO", "value": "me"}]}
    await api.create(pod("known", {**image, "image": "example/echo:1"}, restartPolicy="Never"), namespace)
    await api.create(pod("unknown", {"name": "main", "image": "example/unknown:1"}), namespace)
    [user, address] = await last_words(api, "known", namespace)
    assert (user, address) == ("me", (await api.get("pods", "known", namespace))["status"]["podIP"])
    await api.until("pods", "unknown", waits("ErrImagePull"), namespace)


async def test_nothing_starts_again_in_the_namespace_of_a_test_that_has_ended(
    cluster: Cluster, api: Api, namespace: str, pool: asyncpg.Pool, database_url: str
) -> None:
    """The controllers may not know the definition of its pools yet, and would keep its Deployments for that long."""
    async with System(cluster, api, namespace, pool, database_url):
        await api.create(deployment("one", python(FOREVER)), namespace)
        await api.until("deployments", "one", is_available(1), namespace)
    await api.until("deployments", "one", lambda found: found is None, namespace)
    await api.until_all("pods", lambda found: not found, namespace)


async def test_nothing_is_left_when_the_tests_are_killed(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    code = f"""
import os, pathlib, signal, subprocess, sys
from tests.support.cluster.processes import Guard, MARK
guard = Guard(pathlib.Path({str(folder)!r}))
nap = [sys.executable, "-c", "import signal; signal.pause()"]
subprocess.Popen(nap, env={{MARK: {str(folder)!r}}}, start_new_session=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)  # noqa: ASYNC221 - it is short
    assert done.returncode == -signal.SIGKILL
    await eventually(lambda: not folder.exists(), why="the guard has removed the folder")
    assert marked(f"JOEX_TEST_CLUSTER={folder}") == []


@pytest.mark.parametrize("module", [images, process, rewriting], ids=lambda module: module.__name__.rpartition(".")[2])
def test_the_examples_in_the_kubelet_are_true(module: ModuleType) -> None:
    done = doctest.testmod(module)
    assert done.attempted > 0
    assert done.failed == 0

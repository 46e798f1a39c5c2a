"""The files to deploy with are such as their readers take, and say what the product understands.

Nothing is built or started: the shape of each file, its references, and its command lines.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dragoman.cli.main import parser
from dragoman.server.config import FILE, read
from dragoman.server.host import check
from dragoman.server.settings import Settings
from tests.architecture.tree import ROOT

FOLDER = ROOT / "docs" / "deploy"
MOUNTED = f"/etc/dragoman/{FILE}"


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return found


def manifests() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    return {document["kind"]: document for document in documents}


def container() -> dict[str, Any]:
    found: dict[str, Any] = manifests()["Deployment"]["spec"]["template"]["spec"]
    return found


def image() -> list[str]:
    """What the image does when nothing else is said."""
    (words,) = re.findall(r"^CMD (\[.*\])$", (FOLDER / "Dockerfile").read_text(), re.M)
    found: list[str] = json.loads(words)
    return found


def test_each_place_serves_what_a_mounted_file_says() -> None:
    """N11. On all addresses, with a key."""
    files = [
        (FOLDER / "dragoman.toml").read_text(),
        manifests()["ConfigMap"]["data"]["dragoman.toml"],
    ]
    for text in files:
        found = read(text)
        assert found.upstreams
        assert found.server.store == "postgresql://dragoman@postgres/dragoman"
        assert found.server.host == "0.0.0.0"
        assert found.server.api_key_env == ("DRAGOMAN_KEY",)
        assert found.server.encryption_key_env == "ENCRYPTION_KEY"  # both servers decrypt
    services = compose()["services"]
    (server,) = container()["containers"]
    for words in (services["one"]["command"], services["two"]["command"], server["args"]):
        assert parser().parse_args(words).config == Path(MOUNTED)
    for name in ("one", "two"):
        (volume,) = services[name]["volumes"]
        source, target, mode = volume.split(":")
        assert (FOLDER / source).exists()
        assert (target, mode) == (MOUNTED, "ro")
    (mount,) = server["volumeMounts"]
    (volume,) = container()["volumes"]
    assert mount["name"] == volume["name"]
    assert volume["configMap"]["name"] == manifests()["ConfigMap"]["metadata"]["name"]
    assert f"{mount['mountPath']}/{FILE}" == MOUNTED


def test_the_image_alone_listens_on_all_addresses_and_reads_the_mounted_file() -> None:
    """N11. A server on the loopback of a container is reached by nobody."""
    options = parser().parse_args(image())
    assert options.host == "0.0.0.0"
    assert options.api_key_env == "DRAGOMAN_KEY"
    (folder,) = re.findall(r"^WORKDIR (/etc.*)$", (FOLDER / "Dockerfile").read_text(), re.M)
    assert f"{folder}/{FILE}" == MOUNTED
    with pytest.raises(Exception, match="Without a key"):
        check(Settings(host=options.host))


def test_two_servers_share_one_database() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "one", "two"}
    for name in ("one", "two"):
        server = services[name]
        assert server["environment"]["PGPASSWORD"] == "${POSTGRES_PASSWORD:?}"
        assert server["environment"]["ENCRYPTION_KEY"] == "${ENCRYPTION_KEY:?}"
        assert server["depends_on"] == {"postgres": {"condition": "service_healthy"}}
        assert (FOLDER / server["build"]["context"]).resolve() == ROOT
        assert (ROOT / server["build"]["dockerfile"]).exists()
        assert float(server["stop_grace_period"].removesuffix("s")) > Settings().drain
    published = [port for name in ("one", "two") for port in services[name]["ports"]]
    assert len(set(published)) == 2
    assert all(port.endswith(f":{Settings().port}") for port in published)


def test_the_manifest_fits_together() -> None:
    found = manifests()
    assert set(found) == {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget"}
    assert {kind: each["apiVersion"] for kind, each in found.items()} == {
        "ConfigMap": "v1",
        "Deployment": "apps/v1",
        "Service": "v1",
        "PodDisruptionBudget": "policy/v1",
    }
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert (
        found["PodDisruptionBudget"]["spec"]["minAvailable"]
        < found["Deployment"]["spec"]["replicas"]
    )
    assert container()["terminationGracePeriodSeconds"] > Settings().drain
    (server,) = container()["containers"]
    (port,) = server["ports"]
    assert port["containerPort"] == Settings().port
    named = {found["Service"]["spec"]["ports"][0]["targetPort"]}
    named |= {server[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")}
    assert named == {port["name"]}
    assert server["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert server["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert {variable["name"] for variable in server["env"]} == {
        "DRAGOMAN_KEY",
        "ENCRYPTION_KEY",
        "PGPASSWORD",
    }
    guide = (ROOT / "docs" / "guide" / "several-servers.md").read_text()
    for variable in server["env"]:
        reference = variable["valueFrom"]["secretKeyRef"]
        assert f"secret generic {reference['name']}" in guide
        assert f"--from-literal={reference['key']}=" in guide


def test_the_image_installs_by_hash_and_runs_as_nobody() -> None:
    """8.01. Nothing else is fetched, neither to build nor to run."""
    text = (FOLDER / "Dockerfile").read_text()
    installs = [line for line in text.splitlines() if re.search(r"pip (install|wheel)", line)]
    assert len(installs) == 4
    for line in installs:
        assert "--require-hashes" in line or "--no-deps" in line, line
    for name in re.findall(r"[\w/]*?(\w+\.lock)", text):
        assert (FOLDER / name).exists()
    assert 'ENTRYPOINT ["dragoman"]' in text
    assert text.rindex("USER dragoman") > text.rindex("RUN ")


def test_nginx_lets_websockets_through_and_keeps_connections_of_requests() -> None:
    """What asks for an upgrade is passed on with it; what does not keeps its connection open."""
    (text,) = re.findall(
        r"```nginx\n(.*?)```", (ROOT / "docs" / "guide" / "gateway.md").read_text(), re.S
    )
    headers = dict(re.findall(r"proxy_set_header (\w+) (.*);", text))
    assert headers == {
        "Upgrade": "$http_upgrade",
        "Connection": "$connection_upgrade",
        "Host": "$host",
    }
    ((asked, made, cases),) = re.findall(r"map (\S+) (\S+) \{(.*?)\}", text, re.S)
    assert (asked, made) == (headers["Upgrade"], headers["Connection"])
    assert re.findall(r"(\S+) (\S+);", cases) == [("default", "upgrade"), ('""', '""')]

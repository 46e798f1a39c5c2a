"""The files to deploy with are such as their readers take, and say what the product understands.

Nothing is built or started: the shape of each file, its references, and its command lines.
"""

import re
from typing import Any

import pytest
import yaml

from dragoman.cli.main import parser
from dragoman.server.host import check
from dragoman.server.settings import Settings
from tests.architecture.tree import ROOT

FOLDER = ROOT / "docs" / "deploy"


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return found


def manifests() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    return {document["kind"]: document for document in documents}


def container() -> dict[str, Any]:
    found: dict[str, Any] = manifests()["Deployment"]["spec"]["template"]["spec"]
    return found


def commands() -> list[list[str]]:
    services = compose()["services"]
    return [
        services["one"]["command"],
        services["two"]["command"],
        container()["containers"][0]["args"],
    ]


@pytest.mark.parametrize("words", commands())
def test_command_lines_of_the_servers_parse(words) -> None:
    options = parser().parse_args(words)
    assert options.store == "postgresql://dragoman@postgres/dragoman"
    assert options.api_key_env
    with pytest.raises(Exception, match="Without a key"):
        check(Settings(host=options.host))


def test_two_servers_share_one_database() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "one", "two"}
    for name in ("one", "two"):
        server = services[name]
        assert server["environment"]["PGPASSWORD"] == "${POSTGRES_PASSWORD:?}"
        assert server["depends_on"] == {"postgres": {"condition": "service_healthy"}}
        assert (FOLDER / server["build"]["context"]).resolve() == ROOT
        assert (ROOT / server["build"]["dockerfile"]).exists()
        assert float(server["stop_grace_period"].removesuffix("s")) > Settings().drain
    published = [port for name in ("one", "two") for port in services[name]["ports"]]
    assert len(set(published)) == 2
    assert all(port.endswith(f":{Settings().port}") for port in published)


def test_the_manifest_fits_together() -> None:
    found = manifests()
    assert set(found) == {"Deployment", "Service", "PodDisruptionBudget"}
    assert {kind: each["apiVersion"] for kind, each in found.items()} == {
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
    guide = (ROOT / "docs" / "guide" / "several-servers.md").read_text()
    for variable in server["env"]:
        reference = variable["valueFrom"]["secretKeyRef"]
        assert f"secret generic {reference['name']}" in guide
        assert f"--from-literal={reference['key']}=" in guide


def test_the_image_has_what_the_servers_need() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    (extras,) = re.findall(r"/source\[([\w,]+)\]", text)
    assert set(extras.split(",")) == {"local", "postgres"}
    assert 'ENTRYPOINT ["dragoman"]' in text
    assert "USER dragoman" in text

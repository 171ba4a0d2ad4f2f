"""The files of tools/monitoring say what the metrics, the commands and the formats of others really are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import netstack.cli
from netstack.cluster.jobmanager.views.metrics import CATALOGUE as OF_JOBMANAGER
from netstack.network.metrics.catalogue import CATALOGUE

yaml = pytest.importorskip("ruamel.yaml", reason="comes with check-jsonschema")

TOOLS = Path(__file__).parents[2] / "tools"
MONITORING = TOOLS / "monitoring"
KNOWN = {metric.name: metric for metric in (*CATALOGUE, *OF_JOBMANAGER)}
PROMTOOL = shutil.which("promtool")


def read(name: str) -> Any:
    return yaml.YAML(typ="safe").load((MONITORING / name).read_text())


def queries() -> list[str]:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    drawn = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return drawn + [rule["expr"] for group in read("alerts.yml")["groups"] for rule in group["rules"]]


def test_the_dashboard_is_what_would_be_rendered() -> None:
    command = [sys.executable, str(TOOLS / "render_dashboard.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("query", queries())
def test_every_query_asks_for_metrics_there_are(query: str) -> None:
    names = re.findall(r"\bnetstack_[a-z_]+", query)
    assert names or "up{" in query
    for name in names:
        assert name in KNOWN, f"{name} is not in the catalogue"
        assert not KNOWN[name].is_detailed, f"{name} is served only when asked for"
        counted = f"rate({name}" in query
        assert counted == (KNOWN[name].kind == "counter"), f"{name} is a {KNOWN[name].kind}"


def test_labels_in_legends_and_alerts_are_those_of_their_metrics() -> None:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    pairs = [(each["expr"], each["legendFormat"]) for panel in panels for each in panel.get("targets", ())]
    rules = [rule for group in read("alerts.yml")["groups"] for rule in group["rules"]]
    pairs += [(rule["expr"], " ".join(rule["annotations"].values())) for rule in rules]
    for query, text in pairs:
        names = re.findall(r"\bnetstack_[a-z_]+", query)
        labels = {label for name in names for label in KNOWN[name].scope.labels} | {"instance"}
        assert set(re.findall(r"\$labels\.(\w+)|\{\{(\w+)\}\}", text)) <= {
            pair for label in labels for pair in ((label, ""), ("", label))
        }


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool: apt-get install prometheus")
@pytest.mark.parametrize("words", [["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]])
def test_prometheus_understands_the_rules(words: list[str]) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool: apt-get install prometheus")
@pytest.mark.parametrize("name", ["prometheus.yml", "prometheus-tls.yml"])
def test_prometheus_understands_its_settings(name: str) -> None:
    assert PROMTOOL is not None
    words = [PROMTOOL, "check", "config", "--syntax-only", name]
    done = subprocess.run(words, cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_compose_file_is_what_its_schema_says() -> None:
    words = ["--builtin-schema", "vendor.compose-spec", str(MONITORING / "compose.yml")]
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_services_are_commands_there_are_and_their_files_too(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch()
    document = read("compose.yml")
    scraped = {
        target.partition(":")[0]
        for each in read("prometheus.yml")["scrape_configs"]
        for target in each["static_configs"][0]["targets"]
    }
    assert scraped == {name for name in document["services"] if name.startswith(("taskmanager", "jobmanager"))}
    for name, service in document["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert not source.startswith("./") or (MONITORING / source).is_file(), source
        if "build" not in service:
            continue
        assert (MONITORING / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        command = netstack.cli.cli.get_command(click.Context(netstack.cli.cli), name.partition("-")[0])
        assert command is not None
        words = [str(word).replace("/run/secrets/netstack", str(secret)) for word in service["command"]]
        command.make_context(name, words, parent=click.Context(netstack.cli.cli, **netstack.cli.cli.context_settings))


def test_the_dashboard_is_where_grafana_looks() -> None:
    volumes = [volume.split(":")[1] for volume in read("compose.yml")["services"]["grafana"]["volumes"]]
    assert read("grafana-dashboards.yml")["providers"][0]["options"]["path"] == str(Path(volumes[-1]).parent)
    assert read("grafana-datasource.yml")["datasources"][0]["type"] == "prometheus"

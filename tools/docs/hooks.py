"""What the site shows besides its own pages: the repository's documents where they lie, and the commands.

Takes: the repository. Gives: files to mkdocs. A document keeps its path, so that its links lead where they do on disk.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "netstack/DESIGN.md",
    "netstack/FLINK.md",
    "netstack/METRICS.md",
    "netstack/THREATS.md",
    "netstack/exchange/wire/SPEC.md",
    "bench/netstack_bench/METHOD.md",
    "bench/netstack_bench/run.schema.json",
    "netstack/schedule/graph/job_file.schema.json",
)


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the documents and the page of the commands."""
    for path in DOCUMENTS:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turns links between pages and documents, which lead to where these lie on disk, into links of the site."""
    if page.file.src_uri == "README.md":
        return markdown.replace("](tools/docs/pages/", "](")
    return markdown.replace("](../../../../", "](../")


def commands() -> str:
    """Every command's own help."""
    parts = ["# Commands", "", "What each command says of itself with `--help`."]
    for program, module in (("netstack", "netstack.cli"), ("netstack-bench", "netstack_bench.cli")):
        group = importlib.import_module(module).cli
        context = click.Context(group, info_name=program, **group.context_settings)
        parts += ["", f"## {program}", "", "```text", group.get_help(context), "```"]
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            own = click.Context(command, info_name=name, parent=context)
            parts += ["", f"### {program} {name}", "", "```text", command.get_help(own), "```"]
    return "\n".join(parts) + "\n"

"""The command `netstack certificate`: a small certificate authority for TLS between the hosts of a cluster.

Takes: folders and host names. Gives: PEM files.
"""

from __future__ import annotations

from pathlib import Path

import click

from ..base.tls import certificates

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group(no_args_is_help=True)
def certificate() -> None:
    """Create TLS certificates for `tls+tcp://` addresses.

    Run `netstack certificate authority AUTHORITY` once. Then, for each host, run `netstack certificate host FOLDER
    --authority AUTHORITY NAME...` with the host names and IP addresses that other processes connect to. Copy FOLDER to
    the host and start every netstack process there with NETSTACK_TLS=FOLDER. Keep AUTHORITY private: with ca-key.pem
    anyone can create certificates of the cluster.
    """


@certificate.command()
@click.argument("folder", type=_FOLDER)
@click.option("--name", default="netstack", show_default=True, help="Name of the cluster, as certificates display it.")
@click.option("--days", default=certificates.CA_DAYS, show_default=True, help="Days until it expires.")
def authority(folder: Path, name: str, days: int) -> None:
    """Create a certificate authority in FOLDER: ca.pem goes to every host, ca-key.pem stays here."""
    certificates.make_authority(folder, name=name, days=days)
    click.echo(f"wrote {folder / 'ca.pem'} and {folder / 'ca-key.pem'}", err=True)


@certificate.command()
@click.argument("folder", type=_FOLDER)
@click.argument("names", nargs=-1, required=True)
@click.option("--authority", "authority_folder", type=_FOLDER, required=True, help="The authority's folder.")
@click.option("--days", default=certificates.HOST_DAYS, show_default=True, help="Days until it expires.")
def host(folder: Path, names: tuple[str, ...], authority_folder: Path, days: int) -> None:
    """Create the certificate of one host in FOLDER. NAMES are the host names and IP addresses that others connect to.

    Run it again before the certificate expires: running processes use the new one for the next connection.
    """
    certificates.make_host(folder, authority_folder, names, days=days)
    click.echo(f"wrote ca.pem, certificate.pem and key.pem for {', '.join(names)} to {folder}", err=True)

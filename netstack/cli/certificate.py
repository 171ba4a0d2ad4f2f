"""`netstack certificate`: a small authority for TLS between the hosts of one cluster.

Takes: folders and names. Gives: PEM files.
"""

from __future__ import annotations

from pathlib import Path

import click

from .. import certificates

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group(no_args_is_help=True)
def certificate() -> None:
    """Make certificates for `tls+tcp://` addresses.

    Once: `netstack certificate authority AUTHORITY`. For each host: `netstack certificate host FOLDER --authority
    AUTHORITY NAME...`, with the names and IP addresses under which it is dialled. Copy FOLDER to the host and start
    everything there with NETSTACK_TLS=FOLDER. AUTHORITY stays where it is: who has ca-key.pem can make certificates.
    """


@certificate.command()
@click.argument("folder", type=_FOLDER)
@click.option("--name", default="netstack", show_default=True, help="Of the cluster; for people.")
@click.option("--days", default=certificates.CA_DAYS, show_default=True, help="How long it is good.")
def authority(folder: Path, name: str, days: int) -> None:
    """Make an authority in FOLDER: ca.pem for every host, and ca-key.pem, which stays here."""
    certificates.make_authority(folder, name=name, days=days)
    click.echo(f"{folder / 'ca.pem'} and {folder / 'ca-key.pem'} are made", err=True)


@certificate.command()
@click.argument("folder", type=_FOLDER)
@click.argument("names", nargs=-1, required=True)
@click.option("--authority", "authority_folder", type=_FOLDER, required=True, help="The folder of the authority.")
@click.option("--days", default=certificates.HOST_DAYS, show_default=True, help="How long it is good.")
def host(folder: Path, names: tuple[str, ...], authority_folder: Path, days: int) -> None:
    """Make what a host needs in FOLDER; NAMES are the host names and IP addresses under which it is dialled.

    Run again before it ends: processes that run use the new one from the next connection on.
    """
    certificates.make_host(folder, authority_folder, names, days=days)
    click.echo(f"{folder} has ca.pem, certificate.pem and key.pem for {', '.join(names)}", err=True)

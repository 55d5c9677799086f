"""Prints the bill of materials of an image as CycloneDX: python3 sbom.py /var/lib/dpkg /opt/koordebpf."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_FIELDS = "${source:Package} ${binary:Package} ${Version} ${Architecture} ${db:Status-Status}\n"


def main(dpkg: str, environment: str) -> None:
    """Print it."""
    bom = Bom(components=[*_debian_packages(dpkg), *_python_packages(environment)])
    # The same packages make the same bill.
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, " ".join(sorted(str(each.purl) for each in bom.components)))
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.metadata.component = Component(name="koordebpf", bom_ref="koordebpf", type=ComponentType.CONTAINER)
    print(JsonV1Dot6(bom).output_as_string(indent=1))


def _debian_packages(dpkg: str) -> Iterator[Component]:
    command = ["dpkg-query", f"--admindir={dpkg}", "--show", f"--showformat={_FIELDS}"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        source, package, version, architecture, status = line.split()
        if status == "installed":
            name = package.partition(":")[0]
            more = {"arch": architecture, "distro": "debian-12", "upstream": source}
            yield _component(PackageURL("deb", "debian", name, version, more))


def _python_packages(environment: str) -> Iterator[Component]:
    (packages,) = Path(environment).glob("lib/python3*/site-packages")
    for each in distributions(path=[str(packages)]):
        name = each.metadata["Name"]
        yield _component(PackageURL("pypi", None, name.lower().replace("_", "-"), each.version))


def _component(purl: PackageURL) -> Component:
    return Component(name=purl.name, version=purl.version, purl=purl, bom_ref=str(purl), type=ComponentType.LIBRARY)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The cluster's certificate authority, and what it signs, as the files that servers read."""

from __future__ import annotations

from pathlib import Path

import trustme

# The first of the Service network, and loopback as the guest of QEMU's user network sees it.
_ADDRESSES = ("10.96.0.1", "10.0.2.2")


class Authority:
    """Signs for one cluster. `certificate` is who clients trust, `key` is what lets others sign in its name.

    Where the folder has the two already, it continues with them.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.certificate, self.key = folder / "ca.crt", folder / "ca.key"
        if self.key.exists():
            self._ca = trustme.CA.from_pem(self.certificate.read_bytes(), self.key.read_bytes())
            return
        self._ca = trustme.CA()
        self._ca.cert_pem.write_to_path(self.certificate)
        self._ca.private_key_pem.write_to_path(self.key)

    def server(self, name: str) -> tuple[Path, Path]:
        """Return certificate and key of a server on loopback."""
        names = ("localhost", "kubernetes", "kubernetes.default.svc", "127.0.0.1", *_ADDRESSES)
        return self._write(name, self._ca.issue_cert(*names, common_name=name))

    def client(self, name: str, user: str, group: str) -> tuple[Path, Path]:
        """Return certificate and key of a client: Kubernetes reads its user from CN and its group from O."""
        # With no name of a host at all Go refuses the certificate: an empty extension that is critical.
        host = f"{name}.koordebpf.test"
        return self._write(name, self._ca.issue_cert(host, common_name=user, organization_name=group))

    def _write(self, name: str, leaf: trustme.LeafCert) -> tuple[Path, Path]:
        certificate, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        leaf.cert_chain_pems[0].write_to_path(certificate)
        leaf.private_key_pem.write_to_path(key)
        return certificate, key

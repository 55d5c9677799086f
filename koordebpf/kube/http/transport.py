"""Requests to one server: bytes out, bytes or lines in, and every failure an error of koordebpf's own tree.

Nothing here retries: who asks knows best whether asking again is wise.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, InsecureRequestWarning, TimeoutError

from koordebpf.errors import NOT_GIVEN, ConfigError, KubeError, KubeSilent, KubeTooLarge
from koordebpf.kube.http.deadlines import Limit, OpenConnections, OpenExchange, pool_classes
from koordebpf.kube.http.refusal import refusal

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

MAX_BODY_BYTES: Final = 64 << 20
_CHUNK_BYTES: Final = 64 << 10
CONNECT_S: Final = 3.0  # a connection inside a cluster takes milliseconds; after this the server is taken for gone
MAX_LIST_BYTES: Final = 1 << 30  # of one that is read object by object
MAX_LINE_BYTES: Final = 8 << 20  # etcd refuses objects above 1.5 MB
_KEPT_CONNECTIONS: Final = 16  # of one server: each watch has one, and what acts beside it
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where kubelet mounts it
_JSON: Final = "application/json"
_CONTENT_TYPES: Final = {"PATCH": "application/strategic-merge-patch+json"}
_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
_JSON_PATCH: Final = "application/json-patch+json"


# Which kubeconfig counts where none is given, and which of its contexts: what kubectl would take.


def found_kubeconfig() -> str | None:
    """Return the files of $KUBECONFIG, with colons between them, else ~/.kube/config; None: there is neither."""
    if named := os.environ.get("KUBECONFIG"):
        return named
    try:
        default = Path("~/.kube/config").expanduser()
        return str(default) if default.exists() else None
    except (OSError, RuntimeError):  # one may not look there, or there is no home
        return None


def current_context(paths: str) -> str | None:
    """Return the current context of several files: the first that names one counts; None: it need not be said.

    The kubernetes package takes the last one's.

    Source:  kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig.
    Raises:  OSError, yaml.YAMLError: a file cannot be read.
    """
    import yaml

    files = [Path(each) for each in paths.split(os.pathsep) if each and Path(each).exists()]
    for path in files if len(files) > 1 else ():
        found = yaml.safe_load(path.read_bytes())
        if isinstance(found, dict) and found.get("current-context"):
            return str(found["current-context"])
    return None


class TokenFile:
    """Reads it again once its stat changes: kubelet rotates projected tokens by swapping a symlink."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: tuple[int, int, int] | None = None
        self._header: dict[str, str] = {}

    def header(self) -> dict[str, str]:
        """Return the header that shows the token.

        Raises:  KubeError: it cannot be read.
        """
        try:
            seen = self._path.stat()
            mark = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
            if mark != self._mark:
                self._header = {"Authorization": f"Bearer {self._path.read_text('ascii').strip()}"}
                self._mark = mark
        except (OSError, UnicodeError) as e:
            raise KubeError(f"{self._path}: the token cannot be read: {e}") from e
        return self._header


def chunks(response: BaseHTTPResponse) -> Iterator[bytes]:
    """Yield an answer as it comes.

    An API server sends a watch in chunks, and read_chunked() runs through half the code that read1() does: for an event
    by itself, which finds none of it in the processor's caches, 10 to 20 µs less.
    """
    if response.chunked:
        return response.read_chunked(_CHUNK_BYTES, decode_content=False)
    return iter(lambda: response.read1(_CHUNK_BYTES), b"")


def whole(response: BaseHTTPResponse, deadline: float, what: str, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return an answer to its end, until a time of time.monotonic().

    Raises:  KubeError: it did not end. KubeTooLarge: it has more than `max_bytes`.
    """
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            raise KubeTooLarge(f"{what}: an answer of more than {max_bytes} bytes")
        # The socket's own time-out restarts with every byte.
        if time.monotonic() > deadline:
            raise KubeError(f"{what}: the answer did not end in time, the outcome is unknown")
    return bytes(body)


class Transport:
    """A connection pool to one server, with its credentials. Safe for threads; `close()` ends every request at once."""

    def __init__(self, url: str, pool: urllib3.PoolManager, authorize: Callable[[], Mapping[str, str]]) -> None:
        self.url = url.rstrip("/")
        self._pool = pool
        self._authorize = authorize
        self._authorizing = threading.Lock()
        self._wires = OpenConnections()
        # A SOCKS proxy brings connections of its own, which keep their way and are ended by their time-outs alone.
        if pool.pool_classes_by_scheme is urllib3.poolmanager.pool_classes_by_scheme:
            pool.pool_classes_by_scheme = pool_classes(self._wires)

    def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        verb: str,
        resource: str,
        timeout_s: float,
        max_bytes: int = MAX_BODY_BYTES,
        accept: str = _JSON,
    ) -> bytes:
        """Return the body of a successful answer, read to its end within `timeout_s`; `accept` is its media type.

        `verb` and `resource` are RBAC's words; errors are worded with them.

        Raises:  KubeBusy, KubeDenied, KubeGone, KubeError. KubeTooLarge: the body has more than `max_bytes`.
        """
        return self._exchange("GET", path, query, None, verb, resource, timeout_s, max_bytes, accept)

    def post(self, path: str, body: bytes, *, resource: str, timeout_s: float) -> bytes:
        """Return the body of a successful answer to an object that was sent.

        Raises:  KubeBusy, KubeDenied, KubeGone, KubeError.
        """
        return self._exchange("POST", path, None, body, "create", resource, timeout_s)

    def put(self, path: str, body: bytes, *, resource: str, timeout_s: float) -> bytes:
        """Return the body of a successful answer to an object that was sent in place of the one that is there.

        Raises:  KubeBusy, KubeDenied, KubeGone, KubeError. KubeConflict: another wrote meanwhile.
        """
        return self._exchange("PUT", path, None, body, "update", resource, timeout_s)

    def patch(self, path: str, body: bytes, *, resource: str, timeout_s: float) -> bytes:
        """Return the body of a successful answer to a strategic merge patch, which Kubernetes' own kinds take.

        Raises:  KubeBusy, KubeDenied, KubeGone, KubeError. KubeConflict: the resourceVersion in it is an old one.
        """
        return self._exchange("PATCH", path, None, body, "patch", resource, timeout_s)

    def json_patch(self, path: str, body: bytes, *, manager: str, resource: str, timeout_s: float) -> bytes:
        """Return the body of a successful answer to a JSON Patch (RFC 6902), which every kind takes.

        Raises:  KubeBusy, KubeDenied, KubeGone, KubeError. KubeConflict: the resourceVersion in it is an old one.
        """
        query = {"fieldManager": manager}
        return self._exchange("PATCH", path, query, body, "patch", resource, timeout_s, content_type=_JSON_PATCH)

    def delete(self, path: str, body: bytes, *, resource: str, timeout_s: float) -> bytes:
        """Return the body of a successful answer to a deletion; `body` are its DeleteOptions.

        Raises:  KubeBusy, KubeDenied, KubeGone, KubeError.
        """
        return self._exchange("DELETE", path, None, body, "delete", resource, timeout_s)

    def apply(self, path: str, body: bytes, *, manager: str, resource: str, timeout_s: float) -> bytes:
        """Return the body of a successful answer to a server-side apply, which takes over the fields in it.

        What `manager` has applied before and is not in it is removed. A field that is not in the schema is refused.

        Raises:  KubeBusy, KubeDenied, KubeGone, KubeError. KubeConflict: uid or resourceVersion in it is an old one.
        """
        query = {"fieldManager": manager, "force": "true"}
        return self._exchange("PATCH", path, query, body, "patch", resource, timeout_s, content_type=_APPLY)

    @contextlib.contextmanager
    def lines(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        resource: str,
        within_s: float,
        silence_s: float = math.inf,
        opened: Callable[[OpenExchange], None] = lambda _: None,
    ) -> Iterator[Iterator[bytes]]:
        """Open a watch and give its lines as they come. The iterator ends when the server ends the answer properly.

        No line for `silence_s` ends it. `opened` takes what another thread may end it by.

        Raises:  KubeError: also from the iterator, where the connection broke or did not end `within_s`. KubeSilent.
        """
        with self._wires.within(within_s, silence_s) as limit:
            opened(OpenExchange(self._wires, limit))
            with self._answer(path, query, "watch", resource, within_s, limit) as response:
                yield self._split(response, f"watch {resource}", limit)

    @contextlib.contextmanager
    def parts(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        verb: str,
        resource: str,
        within_s: float,
        silence_s: float = math.inf,
    ) -> Iterator[Iterator[bytes]]:
        """Open an answer and give it as it comes, of any size up to `MAX_LIST_BYTES`; errors as of `lines`.

        Nothing for `silence_s` ends it.
        """
        with (
            self._wires.within(within_s, silence_s) as limit,
            self._answer(path, query, verb, resource, within_s, limit) as response,
        ):
            yield self._parts(response, f"{verb} {resource}", limit)

    def credentials(self) -> dict[str, str]:
        """Return the headers that show who asks, for what is no plain request.

        Raises:  KubeError: they cannot be read.
        """
        with self._authorizing:
            return dict(self._authorize())

    def forget_connections(self) -> None:
        """Let the next request make a connection of its own; those that are in use stay."""
        self._pool.clear()

    def prepare(self) -> None:
        """Start now what the first request would: under pressure a new thread's stack is one more allocation."""
        self._wires.start()

    def close(self) -> None:
        """Cut every connection; requests that wait fail at once, and no new one is made."""
        self._wires.cut()
        self._pool.clear()

    def _exchange(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        verb: str,
        resource: str,
        timeout_s: float,
        max_bytes: int = MAX_BODY_BYTES,
        accept: str = _JSON,
        content_type: str | None = None,
    ) -> bytes:
        what = f"{verb} {resource}"
        deadline = time.monotonic() + timeout_s
        with self._wires.within(timeout_s) as limit, self._worded(what, limit):
            response = self._open(
                method,
                path,
                query,
                body,
                connect_s=min(CONNECT_S, timeout_s),
                read_s=timeout_s,
                accept=accept,
                content_type=content_type,
            )
            try:
                answer = whole(response, deadline, what, max_bytes)
            except BaseException:
                response.close()
                raise
            response.release_conn()
        if response.status not in (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED):
            raise refusal(response.status, response.headers, answer, verb, resource)
        return answer

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str | None = None,
        *,
        connect_s: float,
        read_s: float,
        accept: str = _JSON,
    ) -> BaseHTTPResponse:
        headers = {"Accept": accept, "User-Agent": "koordebpf"}
        if body is not None:
            headers["Content-Type"] = content_type or _CONTENT_TYPES.get(method, _JSON)
        headers.update(self.credentials())
        return self._pool.request(
            method,
            f"{self.url}{path}" + (f"?{urlencode(query)}" if query else ""),
            headers=headers,
            body=body,
            timeout=urllib3.Timeout(connect=connect_s, read=read_s),
            retries=False,
            redirect=False,
            preload_content=False,
        )

    @contextlib.contextmanager
    def _answer(
        self, path: str, query: Mapping[str, str] | None, verb: str, resource: str, within_s: float, limit: Limit
    ) -> Iterator[BaseHTTPResponse]:
        what = f"{verb} {resource}"
        with self._worded(what, limit):
            response = self._open("GET", path, query, None, connect_s=min(CONNECT_S, within_s), read_s=within_s)
        try:
            if response.status != HTTPStatus.OK:
                with self._worded(what, limit):
                    body = whole(response, time.monotonic() + CONNECT_S, what)
                raise refusal(response.status, response.headers, body, verb, resource)
            yield response
        finally:
            # One that was read to its end has gone back to the pool by itself; any other is of no use to anyone.
            response.close()

    def _parts(self, response: BaseHTTPResponse, what: str, limit: Limit) -> Iterator[bytes]:
        read = 0
        with self._worded(what, limit):
            for chunk in chunks(response):
                limit.alive()
                if (read := read + len(chunk)) > MAX_LIST_BYTES:
                    raise KubeTooLarge(f"{what}: an answer of more than {MAX_LIST_BYTES} bytes")
                yield chunk

    def _split(self, response: BaseHTTPResponse, what: str, limit: Limit) -> Iterator[bytes]:
        rest = b""
        with self._worded(what, limit):
            for chunk in chunks(response):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    limit.alive()
                    if line.strip():
                        yield line
                if len(rest) > MAX_LINE_BYTES:
                    raise KubeError(f"{what}: a line of more than {MAX_LINE_BYTES} bytes")
        if rest.strip():
            raise KubeError(f"{what}: the connection to {self.url} was cut inside a line")

    @contextlib.contextmanager
    def _worded(self, what: str, limit: Limit) -> Iterator[None]:
        try:
            yield
            if limit.is_over:  # without Content-Length the cut looks like an end
                raise TimeoutError("the answer did not end")
        except (HTTPError, http.client.HTTPException, OSError) as e:
            raise self._error(e, what, limit) from e

    def _error(self, e: Exception, what: str, limit: Limit) -> KubeError:
        if limit.is_silent:
            return KubeSilent(f"{what}: {self.url} has said nothing for {limit.silence_s:g} s")
        match e:
            case ConnectTimeoutError():  # NewConnectionError too: nothing was sent
                return KubeError(f"{what}: no connection to {self.url}: {e.__cause__ or e}")
            case TimeoutError():
                return KubeError(f"{what}: no answer from {self.url} in time, the outcome is unknown: {e}")
            case _ if limit.is_over:
                return KubeError(f"{what}: no whole answer from {self.url} in time, the outcome is unknown")
            case _:
                return KubeError(f"{what}: the connection to {self.url} failed: {e}")


def open_cluster(kubeconfig: Path | None = None, context: str | None = None) -> Transport:
    """Return a transport to the API server: of a kubeconfig, or in-cluster where there is none.

    Without `kubeconfig` it is found as kubectl does: the files of $KUBECONFIG, else ~/.kube/config, else in-cluster.

    Raises:  ConfigError: the configuration cannot be used.
    Cost:    a kubeconfig imports the kubernetes package: 22 MB and 0.4 s of CPU.
    """
    found = found_kubeconfig() if kubeconfig is None else str(kubeconfig)
    if found is None:
        return open_in_cluster()
    import yaml
    from kubernetes import config as loaders
    from kubernetes.client import Configuration
    from kubernetes.client.rest import RESTClientObject

    configuration = Configuration()
    try:
        loaders.load_kube_config(  # type: ignore[no-untyped-call]
            found, context=context or current_context(found), client_configuration=configuration, persist_config=False
        )
        pool = RESTClientObject(configuration).pool_manager
        if not configuration.verify_ssl:
            urllib3.disable_warnings(InsecureRequestWarning)  # the kubeconfig asks for it; once is enough
    # It looks at hardly any type of what it reads.
    except (loaders.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, LookupError, AttributeError) as e:
        raise ConfigError(found, context or NOT_GIVEN, f"must lead to an API server: {' '.join(str(e).split())}") from e

    def authorize() -> dict[str, str]:
        # The package refreshes the tokens of kubeconfig plugins inside this call.
        try:
            bearer = configuration.auth_settings().get("BearerToken")
        except (loaders.ConfigException, OSError) as e:
            raise KubeError(f"the credentials for {configuration.host} cannot be refreshed: {e}") from e
        return {"Authorization": bearer["value"]} if bearer and bearer["value"] else {}

    return Transport(configuration.host, pool, authorize)


def open_in_cluster(account: Path = SERVICE_ACCOUNT) -> Transport:
    """Return a transport to the API server of the cluster that this pod is in, by its ServiceAccount.

    Without the kubernetes package, which every node would pay for and only a kubeconfig is worth.

    Source:  kubernetes.io/docs/tasks/run-application/access-api-from-pod.
    Raises:  ConfigError: this is no pod, or it has no ServiceAccount.
    """
    where = "in-cluster configuration"
    host, port = (os.environ.get(name, "") for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"))
    if not host or not port:
        rule = "needs KUBERNETES_SERVICE_HOST and _PORT, which every pod has; outside of a pod give --kubeconfig"
        raise ConfigError(where, host or NOT_GIVEN, rule)
    token, authority = account / "token", account / "ca.crt"
    for path in (token, authority):
        if not os.access(path, os.R_OK):
            raise ConfigError(where, str(path), "must be readable: is automountServiceAccountToken off?")
    pool = urllib3.PoolManager(maxsize=_KEPT_CONNECTIONS, cert_reqs="CERT_REQUIRED", ca_certs=str(authority))
    address = f"[{host}]" if ":" in host else host
    return Transport(f"https://{address}:{port}", pool, TokenFile(token).header)


def open_kubelet(url: str, token_file: Path, ca_file: Path | None, *, insecure: bool) -> Transport:
    """Return a transport to a kubelet that shows the token of a ServiceAccount, read again whenever its file changes.

    Raises:  ConfigError: no https address, an unreadable file, or not exactly one of `ca_file` and `insecure`.
    """
    if not url.startswith("https://"):
        raise ConfigError("kubelet URL", url, "must begin with https://, or the token would travel in the clear")
    if (ca_file is None) != insecure:
        raise ConfigError("kubelet CA file", ca_file, "give a CA file, or say that the certificate is not checked")
    for path in filter(None, (token_file, ca_file)):
        if not os.access(path, os.R_OK):
            raise ConfigError(str(path), NOT_GIVEN, "must be a readable file")
    if ca_file is None:
        # The kubelet's default serving certificate is self-signed: many clusters have nothing to check it against. Who
        # asked for this need not be warned at every request.
        urllib3.disable_warnings(InsecureRequestWarning)
        pool = urllib3.PoolManager(cert_reqs="CERT_NONE", assert_hostname=False)
    else:
        pool = urllib3.PoolManager(cert_reqs="CERT_REQUIRED", ca_certs=str(ca_file))
    return Transport(url, pool, TokenFile(token_file).header)

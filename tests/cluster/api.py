"""What tests and the demo ask of the API server, as the cluster's administrator: JSON in, JSON out."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

from tests.support.patience import patience

Object = dict[str, Any]
_PATCH = "application/merge-patch+json"
_SERVED_S = 10


class Refused(RuntimeError):
    """The API server said no."""

    def __init__(self, what: str, status: int, body: Object) -> None:
        super().__init__(f"{what}: {status} {body.get('message')}")
        self.status = status
        self.body = body


class Api:
    """A client with a bearer token. Objects are named by what they say of themselves: apiVersion, kind, metadata."""

    def __init__(self, url: str, ca_file: Path, token: str) -> None:
        self._url = url
        self._http = urllib3.PoolManager(ca_certs=str(ca_file), maxsize=4)
        self._token = token

    def call(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Object:
        """Return what the server answered.

        Raises:  Refused: anything but success.
        """
        response = self._http.request(
            method,
            self._url + path,
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": content_type},
            body=None if body is None else json.dumps(body),
            retries=False,
            timeout=patience(30),
        )
        try:
            answer = json.loads(response.data)
        except ValueError:
            answer = {"message": response.data.decode(errors="replace")}
        if response.status >= 300:
            raise Refused(f"{method} {path}", response.status, answer)
        return dict(answer)

    def create(self, *objects: Object) -> Object:
        """Create objects in their order; return the last one as the server has it.

        A path that is not served is asked for again: that of a CRD that was just accepted may be missing for a moment.
        """
        made: Object = {}
        for each in objects:
            deadline = time.monotonic() + patience(_SERVED_S)
            while True:
                try:
                    made = self.call("POST", collection(each), each)
                    break
                except Refused as refused:
                    if "kind" in refused.body or refused.status != 404 or time.monotonic() > deadline:
                        raise  # a Status: the server knows the path
                    time.sleep(0.1)
        return made

    def get(self, one: Object) -> Object | None:
        """Return the object as it is now; None: there is none."""
        try:
            return self.call("GET", path_of(one))
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def patch(self, one: Object, change: Object, subresource: str = "") -> Object:
        """Merge a change into an object, or into its status."""
        return self.call("PATCH", path_of(one) + (f"/{subresource}" if subresource else ""), change, _PATCH)

    def delete(self, one: Object, **options: object) -> None:
        """Begin the deletion of an object; one that is gone is no error."""
        try:
            self.call("DELETE", path_of(one), options or None)
        except Refused as refused:
            if refused.status != 404:
                raise

    def items(self, api_version: str, kind: str, namespace: str | None = None, **query: str) -> list[Object]:
        """Return every object of a kind."""
        path = collection({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace}})
        found: list[Object] = self.call("GET", f"{path}?{urlencode(query)}")["items"]
        return found

    def wait_gone(self, one: Object, timeout_s: float = 30) -> float:
        """Wait until the object is gone, or is another one of that name; return time.monotonic() of then."""
        uid = one["metadata"].get("uid")
        deadline = time.monotonic() + patience(timeout_s)
        while (now := self.get(one)) is not None and uid in (None, now["metadata"]["uid"]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path_of(one)} is still there: {now.get('status')}")
            time.sleep(0.02)
        return time.monotonic()


def collection(one: Mapping[str, Any]) -> str:
    """Return where objects of this kind and namespace are."""
    version = one["apiVersion"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = re.sub("y$", "ie", one["kind"].lower()) + ("es" if one["kind"].endswith("s") else "s")
    namespace = one["metadata"].get("namespace")
    return f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"


def path_of(one: Mapping[str, Any]) -> str:
    """Return where this object is."""
    return f"{collection(one)}/{one['metadata']['name']}"

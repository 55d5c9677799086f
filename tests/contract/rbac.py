"""Who may do what by the RBAC objects of deploy/, judged as the API server's authorizer does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.contract.apiserver import Request

RBAC = Path(__file__).parents[2] / "deploy/base/rbac.yaml"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Asked:
    """The attributes of a request that RBAC looks at."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str


def asked(request: Request) -> Asked:
    parts = request.path.strip("/").split("/")
    group, parts = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    resource, name = parts[0], parts[1] if len(parts) > 1 else ""
    if len(parts) > 2:
        resource += f"/{parts[2]}"
    if request.method != "GET":
        return Asked(_VERBS[request.method], group, resource, namespace, name)
    if name:
        return Asked("get", group, resource, namespace, name)
    # A list of one by its name counts as a request for it: k8s.io/apiserver pkg/endpoints/request/requestinfo.go.
    selector = request.query.get("fieldSelector", "")
    name = selector.removeprefix("metadata.name=") if selector.startswith("metadata.name=") else ""
    return Asked("watch" if request.is_watch else "list", group, resource, namespace, name)


class Rules:
    """What the roles bound to one ServiceAccount allow. `without`: (resource, verb) that is taken away."""

    def __init__(self, account: str, without: tuple[str, str] | None = None, path: Path = RBAC) -> None:
        objects = [each for each in yaml.safe_load_all(path.read_text()) if each]
        roles = {(each["kind"], each["metadata"]["name"]): each for each in objects}
        self.rules: list[tuple[str | None, dict[str, Any], tuple[str, str]]] = []
        for binding in objects:
            if account not in [subject["name"] for subject in binding.get("subjects", ())]:
                continue
            role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
            for rule in role["rules"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        if (resource, verb) != without:
                            self.rules.append((role["metadata"].get("namespace"), rule, (resource, verb)))

    def granted(self) -> set[tuple[str, str]]:
        return {pair for _, _, pair in self.rules}

    def allow(self, what: Asked) -> bool:
        return any(
            namespace in (None, what.namespace)
            and pair == (what.resource, what.verb)
            and what.group in rule["apiGroups"]
            and what.name in rule.get("resourceNames", [what.name])
            for namespace, rule, pair in self.rules
        )

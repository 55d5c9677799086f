"""Who may read and change what by the RBAC of deploy/, and the policies that narrow it to the node of the token."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import yaml

Object = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"
POLICIES = DEPLOY / "components/own-node-only/policies.yaml"
BASE = "base"
_READING = {"get", "list", "watch"}
# These run commands by whichever verb: a websocket begins with a GET.
_COMMANDS = {"pods/exec", "pods/attach", "pods/portforward", "nodes/proxy"}
# What admission calls a verb. Server-side apply that creates an object needs the verb create as well. Other verbs, as
# bind or impersonate, no policy sees.
_OPERATIONS = {
    "create": "CREATE",
    "update": "UPDATE",
    "patch": "UPDATE",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
# The node of a token that is bound to a pod; one that is bound to a Node names no pod.
_NODE = (
    'request.userInfo.?extra[?"authentication.kubernetes.io/pod-name"].hasValue() ? '
    'request.userInfo.?extra[?"authentication.kubernetes.io/node-name"].orValue([""])[0] : ""'
)


class Right(msgspec.Struct, frozen=True, order=True):
    """One verb for one resource that a component gives an account."""

    account: str  # the subject's name
    component: str  # the folder below deploy/components; base: deploy/base
    verb: str
    resource: str
    group: str = ""
    is_person: bool = False  # the subject is a group of people
    named: tuple[str, ...] = ()  # only objects of these names

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"

    @property
    def writes(self) -> bool:
        """Whether it changes an object, or runs a command."""
        return self.verb not in _READING or self.resource in _COMMANDS


class Policy(msgspec.Struct, frozen=True):
    """A ValidatingAdmissionPolicy and its binding."""

    name: str
    spec: Object
    binding: Object

    def judges(self, right: Right) -> bool:
        """Tell whether every use of the right is judged by it, wherever the binding applies."""
        constraints, operation = self.spec["matchConstraints"], _OPERATIONS.get(right.verb)
        agents = (
            'request.userInfo.username.startsWith("system:serviceaccount:") && '
            f'request.userInfo.username.endsWith(":{right.account}")'
        )
        return (
            self.spec["failurePolicy"] == "Fail"
            and self.binding.get("validationActions") == ["Deny"]
            and [_line(each["expression"]) for each in self.spec["matchConditions"]] == [agents]
            and constraints.keys() == {"resourceRules"}
            and any(
                each.keys() == {"apiGroups", "apiVersions", "operations", "resources"}
                and right.group in each["apiGroups"]
                and each["apiVersions"] == ["*"]
                and operation in each["operations"]
                and right.resource in each["resources"]
                for each in constraints["resourceRules"]
            )
        )

    @property
    def compares_nodes(self) -> bool:
        """Whether one of its validations compares something with the node of the token."""
        variables = {each["name"]: _line(each["expression"]) for each in self.spec.get("variables", ())}
        return variables.get("node") == _NODE and any(
            "== variables.node" in each["expression"] for each in self.spec["validations"]
        )


def documents(path: Path) -> list[Object]:
    """Return the objects of a YAML file."""
    return [each for each in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader) if each]


def shipped() -> dict[str, list[Object]]:
    """Return the objects of deploy/base and of each component, by the component's name."""
    folders = {BASE: DEPLOY / BASE} | {path.name: path for path in (DEPLOY / "components").iterdir()}
    return {
        name: [each for path in sorted(folder.rglob("*.yaml")) for each in documents(path)]
        for name, folder in folders.items()
    }


def rights_in(objects: dict[str, list[Object]]) -> set[Right]:
    """Return what the bindings of each component give to whom.

    Raises:  LookupError: a role is bound that is not there, as one of Kubernetes' own.
    """
    roles = {_role(each["kind"], each["metadata"]): each for some in objects.values() for each in some if _rules(each)}
    found: set[Right] = set()
    for component, some in objects.items():
        for binding in (each for each in some if "roleRef" in each):
            reference = binding["roleRef"]
            where = binding["metadata"] | {"name": reference["name"]}
            role = roles.get(_role(reference["kind"], where))
            if role is None:
                raise LookupError(f"{component}: {binding['metadata']['name']} binds a {reference['kind']} of no file")
            found |= {
                Right(
                    subject["name"],
                    component,
                    verb,
                    resource,
                    group,
                    subject["kind"] != "ServiceAccount",
                    tuple(rule.get("resourceNames", ())),
                )
                for subject in binding.get("subjects", ())
                for rule in _rules(role)
                for group in rule.get("apiGroups", ())
                for resource in rule.get("resources", ())
                for verb in rule["verbs"]
            }
    return found


def policies_in(objects: Iterable[Object]) -> list[Policy]:
    """Return the policies that are bound, each with its binding."""
    some = list(objects)
    bindings = {each["spec"]["policyName"]: each["spec"] for each in some if each["kind"].endswith("PolicyBinding")}
    return [
        Policy(each["metadata"]["name"], each["spec"], bindings[each["metadata"]["name"]])
        for each in some
        if each["kind"] == "ValidatingAdmissionPolicy" and each["metadata"]["name"] in bindings
    ]


def narrowing(right: Right, policies: Iterable[Policy]) -> list[str]:
    """Return the names of the policies that keep a right to the own node; empty: none does."""
    judging = [each for each in policies if each.judges(right)]
    return sorted(each.name for each in judging) if any(each.compares_nodes for each in judging) else []


def _rules(one: Object) -> list[Object]:
    rules: list[Object] = one.get("rules") or [] if one.get("kind") in ("ClusterRole", "Role") else []
    return rules


def _role(kind: str, metadata: Object) -> tuple[str, str, str]:
    return kind, metadata.get("namespace", "") if kind == "Role" else "", metadata["name"]


def _line(expression: str) -> str:
    return " ".join(expression.split())

"""RBAC of deploy/, policies of own-node-only and SECURITY.md: each right to write is narrowed, or said to be open."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator

import msgspec
import pytest

from tests.rules.offenders import report
from tests.rules.pages import ROOT, Row, rows
from tests.rules.test_deploy import ALL_RIGHTS
from tests.support.rights import (
    BASE,
    DEPLOY,
    POLICIES,
    Object,
    Policy,
    Right,
    documents,
    narrowing,
    policies_in,
    rights_in,
    shipped,
)

PAGE = ROOT / "SECURITY.md"
AGENT = "koordebpf-agent"
TO_DO = (
    "every right to write must be narrowed to the token's own node, or said to be open: write a policy into"
    " deploy/components/own-node-only/policies.yaml, or name account and right in a row of A under"
    " `What is not defended` of SECURITY.md; either way in its table `What a token may write`, too"
)
_RIGHT = re.compile(r"[a-z]+ [a-z./]+")


class Page(msgspec.Struct, frozen=True):
    """What SECURITY.md says: its table of rights, the rows of A about what is open, and whom it trusts."""

    table: list[Row]
    is_open: list[Row]
    trusted: str


class World(msgspec.Struct, frozen=True):
    """What is compared."""

    objects: dict[str, list[Object]]
    policies: list[Policy]
    page: Page

    @property
    def writes(self) -> list[Right]:
        return sorted(each for each in rights_in(self.objects) if each.writes)


def world() -> World:
    text = PAGE.read_text()
    not_defended = rows(PAGE, "\n## What is not defended\n")
    page = Page(
        rows(PAGE, "\n## What a token may write\n"),
        [row for row in not_defended if "A" in row.cells[0].split()],
        text[text.index("An administrator of the cluster") : text.index("\n## What is defended\n")],
    )
    return World(shipped(), policies_in(documents(POLICIES)), page)


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def folder(component: str) -> str:
    """Return where a component's files are."""
    return f"deploy/{component}" if component == BASE else f"deploy/components/{component}"


def is_named(right: Right, row: Row) -> bool:
    """Tell whether a row about what is open names the right, its account and its component."""
    return {right.account, str(right), *({right.component} - {BASE})} <= set(codes(row.cells[1]))


def reads_of(row: Row) -> str:
    """Return the account whose reads a row lists: the agent's where it names none; empty: it lists no reads."""
    if not re.search(r"\breads\b", row.cells[1]):
        return ""
    return next((each for each in codes(row.cells[1]) if each.startswith("koordebpf-")), AGENT)


def said_in(page: Page) -> dict[tuple[str, str, str], tuple[Row, list[str]]]:
    """Return row and policies of each account, component and right of the table."""
    return {
        (codes(row.cells[0])[0], codes(row.cells[1])[0], right): (row, sorted(codes(row.cells[3])))
        for row in page.table
        for right in codes(row.cells[2])
    }


def offenders(now: World) -> Iterator[str]:
    """Yield what RBAC, policies and page say differently."""
    said = said_in(now.page)
    for right in now.writes:
        may = f"{folder(right.component)}: {right.account} may `{right}`:"
        names = narrowing(right, now.policies)
        if right.is_person:
            if f"`{right.account}`" not in now.page.trusted:
                yield f"{may} it is a group of people that SECURITY.md does not trust"
            continue
        row, listed = said.pop((right.account, right.component, str(right)), (None, []))
        if not names and not any(is_named(right, each) for each in now.page.is_open):
            yield f"{may} no policy narrows it, and no row says that it is open"
        elif row is None:
            yield f"{may} the table of SECURITY.md has no such row"
        elif listed != names:
            yield f"{row.at}: {may} the table has the policies {listed}, and {names} narrow it"
    for (account, component, name), (row, _) in said.items():
        yield f"{row.at}: {account} may not `{name}` with {component}: remove it from the table"


def left_over(now: World) -> Iterator[str]:
    """Yield policies that narrow nothing, and rows that call open what is narrowed or what no account may."""
    narrowed = {name for right in now.writes for name in narrowing(right, now.policies)}
    for policy in now.policies:
        if policy.name not in narrowed:
            yield f"{POLICIES.name}: {policy.name} narrows no right of RBAC"
    free = [right for right in now.writes if not narrowing(right, now.policies)]
    for row in now.page.is_open:
        named = {right for right in codes(row.cells[1]) if _RIGHT.fullmatch(right)}
        for name in sorted(named - {str(right) for right in free if is_named(right, row)}):
            yield f"{row.at}: `{name}`: RBAC gives no such right to that account, or a policy narrows it"


def test_every_right_to_write_is_narrowed_or_said_to_be_open() -> None:
    now = world()
    assert len(now.writes) >= 18
    report(offenders(now), TO_DO)


def test_no_policy_and_no_row_is_left_over() -> None:
    report(left_over(world()), "remove these, or give the right that they are about")


def test_reads_are_named() -> None:
    """Admission sees none: the rows about what is open have every resource."""
    now = world()
    missing = []
    for right in sorted(rights_in(now.objects)):
        if right.writes or right.is_person:
            continue
        about = [row.cells[1].lower() for row in now.page.is_open if reads_of(row) == right.account]
        missing += [
            f"{folder(right.component)}: {right.account} may `{right}`: {name} is in no row of A about what it reads"
            for name in (right.named or (right.resource,))
            if not any(re.search(rf"(?<![\w/]){name}(?![\w/])", text) for text in about)
        ]
    report(missing, "say in SECURITY.md, `What is not defended`, that a token reads these of the whole cluster")


def test_every_file_with_rights_is_compared_with_the_code() -> None:
    kinds = {"ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding"}
    found = [
        path
        for folder in (DEPLOY / "base", DEPLOY / "components")
        for path in folder.rglob("*.yaml")
        if kinds & {each.get("kind") for each in documents(path)}
    ]
    report(
        [str(path.relative_to(ROOT)) for path in found if path not in ALL_RIGHTS],
        "these files give rights: name them and the code that asks in tests/rules/test_deploy.py",
    )


def rule_of(now: World, component: str, resource: str) -> Object:
    return next(
        rule
        for each in now.objects[component]
        for rule in each.get("rules", ())
        if each["kind"].endswith("Role") and resource in rule["resources"]
    )


def policy_of(now: World, name: str) -> Object:
    return next(each.spec for each in now.policies if each.name == name)


def give_a_verb(now: World) -> None:
    rule_of(now, "instead-of-koordlet", "nodemetrics/status")["verbs"].append("deletecollection")


def give_the_object(now: World) -> None:
    rule_of(now, "instead-of-koordlet", "nodemetrics/status")["resources"].append("nodeslos")


def give_the_controller(now: World) -> None:
    rule_of(now, "batch-resources", "nodes/status")["verbs"].append("update")


def bind_another(now: World) -> None:
    binding = next(each for each in now.objects["node-mark"] if each["kind"] == "ClusterRoleBinding")
    binding["subjects"].append({"kind": "ServiceAccount", "name": "another", "namespace": "koordebpf-system"})


def trust_a_group(now: World) -> None:
    rule_of(now, "readers", "events")["verbs"].append("delete")


def lose_a_policy(now: World) -> None:
    now.policies[:] = [each for each in now.policies if each.name != "koordebpf-node-metrics"]


def lose_the_resource(now: World) -> None:
    policy_of(now, "koordebpf-node-metrics")["matchConstraints"]["resourceRules"][0]["resources"] = ["nodemetrics"]


def lose_the_operation(now: World) -> None:
    policy_of(now, "koordebpf-topologies")["matchConstraints"]["resourceRules"][0]["operations"] = ["CREATE"]


def spare_a_namespace(now: World) -> None:
    policy_of(now, "koordebpf-node-marks")["matchConstraints"]["objectSelector"] = {"matchLabels": {"a": "b"}}


def spare_an_account(now: World) -> None:
    conditions = policy_of(now, "koordebpf-events")["matchConditions"]
    conditions.append({"name": "others", "expression": 'request.namespace != "default"'})


def let_failures_pass(now: World) -> None:
    policy_of(now, "koordebpf-deletions")["failurePolicy"] = "Ignore"


def compare_nothing(now: World) -> None:
    for each in policy_of(now, "koordebpf-deletions")["validations"]:
        each["expression"] = each["expression"].replace("== variables.node", '!= ""')


def lose_a_row_of_the_table(now: World) -> None:
    now.page.table.pop()


def lose_a_row_about_what_is_open(now: World) -> None:
    now.page.is_open[:] = [row for row in now.page.is_open if "`create nodeslos`" not in row.text]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            give_a_verb,
            "koordebpf-agent may `deletecollection nodemetrics/status`: the table of SECURITY.md has no such row",
        ),
        (
            give_the_object,
            "koordebpf-agent may `patch nodeslos`: no policy narrows it, and no row says that it is open",
        ),
        (give_the_controller, "koordebpf-controller may `update nodes/status`: no policy narrows it"),
        (bind_another, "another may `patch nodes`: no policy narrows it"),
        (
            trust_a_group,
            "koordebpf:readers may `delete events`: it is a group of people that SECURITY.md does not trust",
        ),
        (lose_a_policy, "koordebpf-agent may `patch nodemetrics/status`: no policy narrows it"),
        (lose_the_resource, "koordebpf-agent may `patch nodemetrics/status`: no policy narrows it"),
        (lose_the_operation, "koordebpf-agent may `update noderesourcetopologies`: no policy narrows it"),
        (spare_a_namespace, "koordebpf-agent may `patch nodes`: no policy narrows it"),
        (spare_an_account, "koordebpf-agent may `create events`: no policy narrows it"),
        (let_failures_pass, "koordebpf-agent may `delete pods`: no policy narrows it"),
        (compare_nothing, "koordebpf-agent may `delete pods`: no policy narrows it"),
        (
            lose_a_row_of_the_table,
            "koordebpf-controller may `create nodemetrics`: the table of SECURITY.md has no such row",
        ),
        (lose_a_row_about_what_is_open, "koordebpf-controller may `create nodeslos`: no policy narrows it"),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_what_is_given_or_lost_is_noticed(change: Callable[[World], None], said: str) -> None:
    now = copy.deepcopy(world())
    change(now)
    assert any(said in each for each in offenders(now)), list(offenders(now))

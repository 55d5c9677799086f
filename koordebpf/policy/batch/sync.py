"""Whether a Node has to be written: a number that moves a little is not worth a request.

Source: koordinator pkg/slo-controller/noderesource/resource_calculator.go; pkg/util IsQuantityDiff.
"""

from __future__ import annotations

from collections.abc import Mapping

Amounts = Mapping[str, int | None]


def sync_reason(now: Amounts, wanted: Amounts, threshold: float, since_ns: int | None, at_most_ns: int) -> str:
    """Return why the Node has to be written; "": it need not.

    `now` and `wanted` are resource → amount, None: the Node has none. What moved by more than `threshold` of the old is
    written at once, anything else once the last write is older than `at_most_ns`; `since_ns` None: it is not known.
    What did not change is never written.
    """
    small = ""
    for resource, amount in wanted.items():
        old = now.get(resource)
        if amount == old:
            continue
        if amount is None or old is None:
            return f"{resource} {'appears' if old is None else 'is reset'}"
        if abs(amount - old) > old * threshold:
            return f"{resource} {old} → {amount}: by more than {threshold:g} of it"
        small = f"{resource} {old} → {amount}"
    if small and (since_ns is None or since_ns > at_most_ns):
        return f"{small}: the last write is old"
    return ""

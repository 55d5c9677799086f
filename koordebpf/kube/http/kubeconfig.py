"""Which kubeconfig counts where none is given, and which of its contexts: what kubectl would take."""

from __future__ import annotations

import os
from pathlib import Path


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

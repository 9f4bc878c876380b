# SPDX-License-Identifier: Apache-2.0
"""The receipt: what a publication or a rollback did, for machines and for those who ask later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kernelworks import __version__
from kernelworks.catalog import Kernel
from kernelworks.errors import PublishError

FORMAT = 1
PUBLISHED, NOTHING, PULL_REQUEST = "published", "nothing to do", "pull request"
RESTORED = "rolled back"


@dataclass(frozen=True)
class BranchReceipt:
    """What one branch was, and is."""

    branch: str
    before: str | None
    commit: str | None
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    bytes_sent: int = 0


@dataclass(frozen=True)
class Receipt:
    """What was done to a repository on a Hub."""

    status: str
    endpoint: str
    repo_id: str
    version: int
    release: str | None = None
    sources: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    branches: tuple[BranchReceipt, ...] = ()
    pull_requests: tuple[str, ...] = ()
    verified: Mapping[str, Any] | None = None
    format: int = FORMAT
    tool: str = f"kernelworks-{__version__}"
    time: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))


def default_path(kernel: Kernel, receipt: Receipt) -> Path:
    """Beside the kernel's objects, which are not tracked."""
    branch = next((each.branch for each in receipt.branches), "main")
    name = "-".join((branch.replace("/", "-"), *((receipt.release,) if receipt.release else ())))
    return kernel.directory / ".build" / "receipts" / f"{name}.json"


def write(receipt: Receipt, path: Path) -> Path:
    """Write it as JSON and return where it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(receipt), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise PublishError(
            f"the receipt cannot be written to {path}: {error.strerror}; what it tells of was done"
        ) from error
    return path

# SPDX-License-Identifier: Apache-2.0
"""The receipt of a publication."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelworks import catalog, receipt
from kernelworks.errors import PublishError
from kernelworks.receipt import BranchReceipt, Receipt

DONE = Receipt(
    receipt.PUBLISHED,
    "http://hub",
    "kernelworks/toy",
    1,
    release="v1.3",
    branches=(BranchReceipt("v1", "a" * 40, "b" * 40, added=("x",), bytes_sent=3),),
)


def test_it_is_json_beside_the_objects(built: Path) -> None:
    path = receipt.default_path(catalog.load(built, "toy"), DONE)
    assert path == built / "kernels/toy/.build/receipts/v1-v1.3.json"
    found = json.loads(receipt.write(DONE, path).read_text())
    assert (found["status"], found["release"], found["format"]) == ("published", "v1.3", 1)
    assert found["branches"][0]["commit"] == "b" * 40
    assert found["time"].endswith("+00:00")


def test_a_place_that_cannot_be_written_to_does_not_hide_what_was_done(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PublishError, match=r"cannot be written to .*; what it tells of was done"):
        receipt.write(DONE, tmp_path / "file" / "receipt.json")

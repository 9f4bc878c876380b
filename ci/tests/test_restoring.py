# SPDX-License-Identifier: Apache-2.0
"""What turns one release's content into another's, decided on trees that are made up."""

from __future__ import annotations

from kernelworks import restoring
from kernelworks.hub_data import Edit, RemoteFile


def tree(**files: str) -> dict[str, RemoteFile]:
    """Files by their identity; two underscores stand for a slash."""
    paths = {name.replace("__", "/"): identity for name, identity in files.items()}
    return {path: RemoteFile(path, 1, identity, None) for path, identity in paths.items()}


def test_what_differs_is_copied_back_and_what_was_added_goes() -> None:
    now = tree(build__v__a="1", build__v__b="new", build__w__c="3", README="x")
    then = tree(build__v__a="1", build__v__b="old", benchmarks__d="4", README="y")
    release = (
        Edit("benchmarks/d", from_commit="c0ffee"),
        Edit("build/v/b", from_commit="c0ffee"),
        Edit("build/w/c"),
    )
    parts = restoring.content_of(now), restoring.content_of(then)
    assert restoring.edits(*parts, "c0ffee") == release
    assert restoring.edits(now, then, "c0ffee") == (Edit("README", from_commit="c0ffee"), *release)
    assert not restoring.edits(now, now, "c0ffee")


def test_a_release_is_its_builds_and_benchmarks() -> None:
    one, other = tree(build__v__a="1", README="x"), tree(build__v__a="1", README="y")
    assert restoring.is_equal(one, other)
    assert not restoring.is_equal(one, tree(build__v__a="2", README="x"))
    large = {"build/v/a": RemoteFile("build/v/a", 1, "pointer", "sha256")}
    assert large["build/v/a"].identity == "sha256"

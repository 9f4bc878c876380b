# SPDX-License-Identifier: Apache-2.0
"""What a publication changes, decided on trees that are made up."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kernelworks import publish_plan
from kernelworks.catalog import Kernel
from kernelworks.errors import PublishError
from kernelworks.hub_data import Refs, RemoteFile
from kernelworks.publish_plan import ADD, DELETE, REPLACE, LocalFile, Parcel, Plan, Remote, Variant

TIP, MAIN = "a" * 40, "b" * 40
CPU, CUDA = "torch-stable-abi211-cpu-x86_64-linux", "torch-stable-abi211-cu130-x86_64-linux"


def kernel(version: int = 1) -> Kernel:
    return Kernel(
        name="toy",
        version=version,
        license="Apache-2.0",
        repo_id="acme/toy",
        backends=("cpu", "cuda"),
        stable_abi=(2, 11),
        torch_src=(),
        torch_include=(),
        components=(),
        directory=Path("/nowhere/kernels/toy"),
    )


def local(path: str, text: str) -> LocalFile:
    return LocalFile(path, text.encode(), len(text))


def remote(*files: tuple[str, str]) -> dict[str, RemoteFile]:
    """What the Hub has: small files by git's hash."""
    return {
        path: RemoteFile(
            path, len(text), hashlib.sha1(f"blob {len(text)}\0{text}".encode()).hexdigest(), None
        )
        for path, text in files
    }


def parcel(*names: str, version: int = 1, benchmarks: bool = True, text: str = "new") -> Parcel:
    return Parcel(
        kernel=kernel(version),
        repo_id="acme/toy",
        branch=f"v{version}",
        variants=tuple(Variant(Path(name), (local(f"build/{name}/x.so", text),), {}) for name in names),
        benchmarks=(local("benchmarks/benchmark_toy.py", "b"),) if benchmarks else None,
        card=b"card",
        sources=("c" * 40,),
    )


def made(what: Parcel, there: Remote, number: int | None = None) -> Plan:
    return publish_plan.make(what, there, endpoint="http://hub", number=number)


def there(
    *files: tuple[str, str], fresh: bool = False, tags: dict[str, str] | None = None, **branches: str
) -> Remote:
    refs = Refs({"main": MAIN, "v1": TIP, **branches}, tags or {})
    return Remote(refs, remote(*files), remote(("README.md", "old")), is_fresh=fresh)


def actions(plan: Plan) -> dict[str, str]:
    return {change.path: change.action for change in plan.build.changes}


def test_a_new_repository_gets_everything() -> None:
    plan = made(parcel(CPU), Remote(None, {}, {}, is_fresh=True))
    assert plan.creates_repository
    assert plan.build.parent is None
    assert actions(plan) == {"benchmarks/benchmark_toy.py": ADD, f"build/{CPU}/x.so": ADD}
    assert [change.path for change in plan.card.changes] == ["README.md"]
    assert plan.release == "v1.0"


def test_a_fresh_branch_keeps_nothing_that_it_inherits() -> None:
    """P01: a new version branch starts from main and would hold old variants."""
    inherited = ((".gitattributes", "x"), ("README.md", "old"), (f"build/{CUDA}/x.so", "old"))
    plan = made(parcel(CPU), there(*inherited, fresh=True))
    assert actions(plan) == {
        "README.md": DELETE,
        "benchmarks/benchmark_toy.py": ADD,
        f"build/{CPU}/x.so": ADD,
        f"build/{CUDA}/x.so": DELETE,
    }


def test_only_the_variants_being_published_are_replaced() -> None:
    """P02: the other variants stay, and of ours goes what is left over."""
    plan = made(
        parcel(CPU),
        there(
            (f"build/{CPU}/x.so", "old"),
            (f"build/{CPU}/stale.py", "s"),
            (f"build/{CUDA}/x.so", "old"),
            ("benchmarks/benchmark_old.py", "o"),
            ("benchmarks/notes.py", "n"),
            ("benchmarks/data/benchmark_1.py", "d"),
            ("other", "o"),
        ),
    )
    assert actions(plan) == {
        "benchmarks/benchmark_old.py": DELETE,
        "benchmarks/benchmark_toy.py": ADD,
        f"build/{CPU}/stale.py": DELETE,
        f"build/{CPU}/x.so": REPLACE,
    }


def test_without_benchmarks_those_on_the_hub_stay() -> None:
    """P11: the optional part is not required."""
    plan = made(parcel(CPU, benchmarks=False), there(("benchmarks/benchmark_old.py", "o")))
    assert actions(plan) == {f"build/{CPU}/x.so": ADD}


def test_the_variants_that_are_sent() -> None:
    """All where the branch is new, as main may have anything; otherwise those with a file that travels."""
    there_already = ((f"build/{CPU}/x.so", "new"), (f"build/{CPU}/stale.py", "s"))
    assert [each.name for each in made(parcel(CPU, CUDA), there(*there_already)).sent_variants] == [CUDA]
    on_main = Remote(Refs({"main": MAIN}, {}), remote(*there_already), remote(*there_already), is_fresh=True)
    assert [each.name for each in made(parcel(CPU, CUDA), on_main).sent_variants] == [CPU, CUDA]


@pytest.mark.parametrize("large", [False, True])
def test_equal_contents_are_not_sent(tmp_path: Path, large: bool) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(b"new")
    file = LocalFile(f"build/{CPU}/x.so", path, 3)
    known = remote((file.path, "new"))[file.path]
    if large:
        known = RemoteFile(file.path, 3, "0" * 40, hashlib.sha256(b"new").hexdigest())
    assert file.equals(known)
    path.write_bytes(b"neW")
    assert not file.equals(known)


def test_nothing_to_do_is_told_from_a_release_that_was_not_finished() -> None:
    files = ((f"build/{CPU}/x.so", "new"), ("benchmarks/benchmark_toy.py", "b"))
    what = parcel(CPU)
    plan = made(what, Remote(there(*files).refs, remote(*files), remote(("README.md", "card")), False))
    assert not plan.build.changes
    assert not plan.is_nothing, "it has no tag yet"
    tagged = Refs({"main": MAIN, "v1": TIP}, {"v1.0": TIP})
    plan = made(what, Remote(tagged, remote(*files), remote(("README.md", "card")), False))
    assert plan.is_nothing
    assert plan.release == "v1.0"


def test_releases_are_numbered_by_the_newest() -> None:
    tags = {"v1.9": MAIN, "v1.10": MAIN, "v2.30": MAIN, "v1.x": MAIN}
    assert made(parcel(CPU), there(tags=tags)).release == "v1.11"
    assert made(parcel(CPU), there(tags=tags), number=20).release == "v1.20"
    with pytest.raises(PublishError, match=r"v1\.9 is there already.* the next free one is 11"):
        made(parcel(CPU), there(tags=tags), number=9)


def test_the_card_of_an_older_version_does_not_replace_a_newer_one() -> None:
    plan = made(parcel(CPU), there(v2=TIP))
    assert not plan.card.changes
    assert "version 2" in "".join(plan.notes)


def test_a_repository_that_is_there_stays_as_private_as_it_is() -> None:
    plan = publish_plan.make(parcel(CPU), there(), endpoint="http://hub", private=True)
    assert "--private changes nothing" in "".join(plan.notes)


def test_the_plan_as_it_is_printed() -> None:
    """P06: repository, type, branch and every file with its size."""
    text = "\n".join(publish_plan.lines(made(parcel(CPU), there((f"build/{CPU}/old.py", "1234")))))
    assert text.splitlines() == [
        "toy version 1 to acme/toy on http://hub",
        "  repository  kernel, there already",
        f"  source      {'c' * 40}",
        f"  variants    {CPU}",
        f"  branch v1   at {TIP[:12]}: 2 added, 1 deleted, 4 B to send",
        "    add     benchmarks/benchmark_toy.py  1 B",
        f"    delete  build/{CPU}/old.py  4 B",
        f"    add     build/{CPU}/x.so  3 B",
        f"  branch main at {MAIN[:12]}: 1 replaced, 4 B to send",
        "    replace README.md  4 B",
        "  release     v1.0, a tag that is made once the published build was verified",
    ]

# SPDX-License-Identifier: Apache-2.0
"""The repositories on disk: bare git repositories, large files beside them, one writer at a time."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

import filelock
import pygit2
from pygit2.enums import ConfigLevel, ObjectType, Option

from kernelworks.hubserver import documents, durable, names, objects, trees
from kernelworks.hubserver.failures import Failure, conflict, corrupted, no_entry, no_repository, no_revision
from kernelworks.hubserver.settings import Settings
from kernelworks.hubserver.trees import Entry, Listing

LOCK_SECONDS = 60
GIT_ATTRIBUTES = b"# large files are kept by their sha256; nothing needs to be listed here\n"
_SETTINGS = "kernelworks.json"  # inside the bare repository, which git leaves alone


def prepare_libgit2() -> None:
    """Durable, and the same whoever runs the server: no configuration of a user has a say."""
    pygit2.option(Option.ENABLE_FSYNC_GITDIR, True)
    pygit2.option(Option.SET_OWNER_VALIDATION, False)
    for level in (ConfigLevel.PROGRAMDATA, ConfigLevel.SYSTEM, ConfigLevel.XDG, ConfigLevel.GLOBAL):
        pygit2.option(Option.SET_SEARCH_PATH, level, "")


@dataclass(frozen=True)
class Ref:
    """A branch, a tag, or the tip of a pull request."""

    name: str
    ref: str
    commit: str


@dataclass(frozen=True)
class Commit:
    """One commit, as people read it."""

    id: str
    title: str
    body: str
    author: str
    date: datetime
    parents: tuple[str, ...]


class Store:
    """Every repository of one data directory."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        prepare_libgit2()

    def repositories(self) -> list[str]:
        """The ids of all repositories, private ones too, in order."""
        folder = self.settings.repositories
        return sorted(f"{path.parent.name}/{path.stem}" for path in folder.glob("*/*.git") if path.is_dir())

    def open(self, repo_id: str) -> Repository:
        """The repository of this id, or 404."""
        git = self._git(repo_id)
        if not git.is_dir():
            raise no_repository(repo_id)
        return Repository(repo_id, git)

    def create(self, repo_id: str, *, private: bool, author: str) -> Repository:
        """A repository with a first commit on `main`: there at once as a whole, or not at all."""
        git = self._git(repo_id)
        with self.upload() as folder, self.locked(repo_id):
            if git.exists():
                raise conflict(f"kernel repository {repo_id} is here already")
            new = folder / git.name
            bare = pygit2.init_repository(str(new), bare=True, initial_head=names.DEFAULT_BRANCH)
            bare.config["gc.pruneExpire"] = "never"
            bare.config["gc.auto"] = 0
            documents.write_json(new / _SETTINGS, {"private": private})
            _first_commit(bare, repo_id, author)
            # Large files of a repository that was deleted in part are not this one's.
            _discard(git.with_suffix(".lfs"), folder)
            durable.sync_tree(new)  # git syncs what it adds to a repository, not what it begins one with
            new.rename(git)
            durable.sync(git.parent)
        return self.open(repo_id)

    def delete(self, repo_id: str) -> None:
        """Take a repository away with all that it holds."""
        with self.upload() as folder, self.locked(repo_id):
            self.open(repo_id)
            git = self._git(repo_id)
            _discard(git, folder)
            _discard(git.with_suffix(".lfs"), folder)

    @contextmanager
    def upload(self) -> Iterator[Path]:
        """A folder on the repositories' file system that is gone afterwards, however it ends."""
        folder = Path(tempfile.mkdtemp(dir=self.settings.spool))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def locked(self, repo_id: str) -> Iterator[None]:
        """Alone with one repository, over all processes on this data directory."""
        lock = self._git(repo_id).with_suffix(".lock")
        durable.make_folder(lock.parent)
        try:
            with filelock.FileLock(lock, timeout=LOCK_SECONDS):
                yield
        except filelock.Timeout as error:
            raise Failure(
                503, "Busy", f"{repo_id} is busy with other commits; try again", {"Retry-After": "5"}
            ) from error

    def _git(self, repo_id: str) -> Path:
        return self.settings.repositories / f"{repo_id}.git"


class Repository:
    """One repository, to be read; `writing` changes it."""

    def __init__(self, repo_id: str, git: Path) -> None:
        self.id, self.git = repo_id, git
        self.bare = pygit2.Repository(str(git))
        self.objects = objects.Objects(git.with_suffix(".lfs"))

    @property
    def private(self) -> bool:
        """Whether only its organization sees it."""
        return bool(json.loads((self.git / _SETTINGS).read_text())["private"])

    def refs(self) -> list[Ref]:
        """Branches, tags and pull requests, in order of their names."""
        found = []
        for ref in sorted(self.bare.references):
            for start in ("refs/heads/", "refs/tags/", "refs/pr/"):
                if ref.startswith(start):
                    found.append(Ref(ref.removeprefix(start), ref, self._peeled(ref)))
        return found

    def tip(self, ref: str) -> str | None:
        """The commit that a full reference names."""
        return self._peeled(ref) if ref in self.bare.references else None

    def resolve(self, revision: str) -> str:
        """The commit of a branch, a tag, a full reference or a commit's 40 digits."""
        names.revision(revision)
        if names.COMMIT.fullmatch(revision):
            if self._kind(revision) != ObjectType.COMMIT:
                raise no_revision(self.id, revision)
            return revision
        if revision == "HEAD":
            revision = names.DEFAULT_BRANCH
        for ref in (f"refs/heads/{revision}", f"refs/tags/{revision}", revision):
            if ref.startswith("refs/") and pygit2.reference_is_valid_name(ref):
                tip = self.tip(ref)
                if tip:
                    return tip
        raise no_revision(self.id, revision)

    def listing(self, commit: str) -> Listing:
        """Everything in a commit."""
        return trees.listing(self.git, str(self.commit_object(commit).tree_id))

    def tree(self, revision: str, path: str = "", recursive: bool = True) -> list[Entry]:
        """The entries of a folder, files and folders, in order; 404 where there is no such folder."""
        commit = self.resolve(revision)
        found = self.listing(commit).below(path, recursive=recursive)
        if found is None:
            raise no_entry(path, f"{self.id} at {revision}", commit)
        return list(found)

    def entry(self, commit: str, path: str) -> Entry:
        """What there is to know about a file of a commit, or 404."""
        entry = self.listing(commit).entries.get(path)
        if entry is None or entry.is_folder:
            raise no_entry(path, f"{self.id} at {commit}", commit)
        if entry.damaged:
            raise corrupted(f"{self.id} {path}")
        return entry

    def open(self, entry: Entry) -> BinaryIO:
        """The bytes of a file; those that changed on the disk are an error."""
        if entry.pointer:
            return self.objects.open(entry.pointer, f"{self.id} {entry.path}")
        return io.BytesIO(trees.stored(self.bare, entry.blob, pygit2.Blob).data)

    def intact(self, entry: Entry) -> bool:
        """Whether the bytes of a file are those that were stored."""
        if entry.pointer and not self.objects.intact(entry.pointer):
            return False
        return self.bare.odb.exists(entry.blob) and not trees.damaged(self.git, entry.blob)

    def read(self, revision: str, path: str) -> bytes:
        """The content of a file."""
        with self.open(self.entry(self.resolve(revision), path)) as stream:
            return stream.read()

    def commits(self, revision: str) -> Iterator[Commit]:
        """The history of a revision, newest first; no commit that is made here has two parents."""
        commit: str | None = self.resolve(revision)
        while commit:
            found = self.commit(commit)
            yield found
            commit = next(iter(found.parents), None)

    def commit(self, commit: str) -> Commit:
        """One commit by its 40 digits."""
        return _commit(self.commit_object(commit))

    def commit_object(self, commit: str) -> pygit2.Commit:
        """The same as git has it."""
        return trees.stored(self.bare, commit, pygit2.Commit)

    def _peeled(self, ref: str) -> str:
        target = str(self.bare.references[ref].resolve().target)
        while self._kind(target) == ObjectType.TAG:
            target = str(trees.stored(self.bare, target, pygit2.Tag).target)
        return str(self.commit_object(target).id)

    def _kind(self, oid: str) -> int | None:
        return trees.header(self.bare, oid)[0] if self.bare.odb.exists(oid) else None


def signature(author: str) -> pygit2.Signature:
    """Who made a commit, now: the name of the token, without what git cannot hold."""
    name = "".join(each for each in author if each.isprintable() and each not in "<>") or "unknown"
    return pygit2.Signature(name, "token@kernelworks.invalid")


def _commit(found: pygit2.Commit) -> Commit:
    title, _, body = found.message.partition("\n")
    return Commit(
        id=str(found.id),
        title=title,
        body=body.strip(),
        author=found.author.name,
        date=datetime.fromtimestamp(found.commit_time, timezone.utc),
        parents=tuple(str(each) for each in found.parent_ids),
    )


def _first_commit(bare: pygit2.Repository, repo_id: str, author: str) -> None:
    readme = f"---\nlibrary_name: kernels\n---\n\n# {repo_id.partition('/')[2]}\n"
    builder = bare.TreeBuilder()
    for name, data in (("README.md", readme.encode()), (".gitattributes", GIT_ATTRIBUTES)):
        builder.insert(name, bare.create_blob(data), pygit2.enums.FileMode.BLOB)
    who = signature(author)
    ref = f"refs/heads/{names.DEFAULT_BRANCH}"
    bare.create_commit(ref, who, who, "initial commit", builder.write(), [])


def _discard(path: Path, folder: Path) -> None:
    """Out of the way at once; the bytes go when the folder does."""
    if path.exists():
        path.rename(folder / f"discarded-{path.name}")

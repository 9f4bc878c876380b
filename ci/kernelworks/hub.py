# SPDX-License-Identifier: Apache-2.0
"""The only place that talks to a Hub: huggingface.co, or a server at HF_ENDPOINT with the same protocol."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    constants,
    get_session,
    get_token,
)
from huggingface_hub.errors import (
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from kernelworks import __version__, hub_faults
from kernelworks.errors import HubConflictError, HubError, HubUnavailableError
from kernelworks.hub_data import Account, Commit, Edit, Landed, Refs, RemoteFile
from kernelworks.hub_faults import CAUGHT, is_doubtful, status_of, translated, with_retries
from kernelworks.hub_progress import upload_progress

KERNEL = "kernel"
OTHER_TYPES = ("model", "dataset", "space")
PUBLIC_HUB = "https://huggingface.co"
PUBLIC_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")


class Hub:
    """One Hub, with the token that huggingface_hub finds: HF_TOKEN, or a login."""

    def __init__(self, endpoint: str | None = None, token: str | None = None) -> None:
        self.endpoint = _endpoint(endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT)
        self.token = token or get_token()
        self._api = HfApi(
            endpoint=self.endpoint,
            token=self.token or False,
            library_name="kernelworks",
            library_version=__version__,
        )

    @property
    def is_public(self) -> bool:
        """Whether this is huggingface.co, where strangers load what is published."""
        return urlsplit(self.endpoint).hostname in PUBLIC_HOSTS

    def _ask(self, deed: str, call: Callable[[], Any], *, again: bool = True) -> Any:
        """Do what may be repeated; every failure becomes one of our sentences.

        Not `again` where huggingface_hub itself tries five times: that would be 25 attempts.
        """
        get_session().timeout = hub_faults.SILENCE
        try:
            return with_retries(self.endpoint, call) if again else call()
        except CAUGHT as error:
            raise translated(error, self.endpoint, deed) from error
        except (KeyError, TypeError, AttributeError) as error:  # what huggingface_hub looked for is not there
            what = f"{self.endpoint} did not {deed}: its answer is none of a Hub's ({error!r})"
            raise HubError(f"{what}; look at HF_ENDPOINT") from error

    def account(self) -> Account | None:
        """Who we are, or None where the Hub knows no such caller; an expired token is an error."""

        def call() -> dict[str, Any] | None:
            headers = build_hf_headers(token=self.token or False, library_name="kernelworks")
            response = get_session().get(f"{self.endpoint}/api/whoami-v2", headers=headers)
            if response.status_code == 401 and self.token is None:
                return None
            hf_raise_for_status(response)
            return dict(response.json())

        answer = self._ask("say whose token this is", call)
        if answer is None:
            return None
        orgs = [org for org in answer.get("orgs", ()) if org.get("name")]
        access = (answer.get("auth") or {}).get("accessToken") or {}
        return Account(
            name=str(answer.get("name", "")),
            orgs=tuple(org["name"] for org in orgs),
            readers=tuple(org["name"] for org in orgs if org.get("roleInOrg") == "read"),
            role=str(access.get("role", "")),
        )

    def exists(self, repo_id: str, repo_type: str = KERNEL) -> bool:
        """Whether there is such a repository that this token may see."""

        def call() -> bool:
            try:
                return bool(self._api.repo_exists(repo_id, repo_type=repo_type))
            except CAUGHT as error:
                if status_of(error) == 404:  # a Hub that has no repositories of this type
                    return False
                raise

        return bool(self._ask(f"look for the {repo_type} repository {repo_id}", call))

    def refs(self, repo_id: str) -> Refs | None:
        """Branches and tags, or None where there is no such repository."""

        def call() -> Any:
            try:
                return self._api.list_repo_refs(repo_id, repo_type=KERNEL)
            except RepositoryNotFoundError:
                return None

        found = self._ask(f"list the branches of {repo_id}", call)
        if found is None:
            return None
        return Refs(
            branches={ref.name: ref.target_commit for ref in found.branches},
            tags={ref.name: ref.target_commit for ref in found.tags},
        )

    def tree(self, repo_id: str, revision: str, path: str | None = None) -> dict[str, RemoteFile]:
        """Every file at a revision, or below a path of it, by its path."""

        def call() -> list[Any]:
            try:
                return list(
                    self._api.list_repo_tree(
                        repo_id, path, recursive=True, revision=revision, repo_type=KERNEL
                    )
                )
            except RemoteEntryNotFoundError:
                return []

        entries = self._ask(f"list the files of {repo_id} at {revision}", call, again=False)
        return {
            entry.path: RemoteFile(
                entry.path, entry.size, entry.blob_id, entry.lfs.sha256 if entry.lfs else None
            )
            for entry in entries
            if isinstance(entry, RepoFile)
        }

    def commits(self, repo_id: str, revision: str) -> list[Commit]:
        """The history of a revision, newest first."""
        found = self._ask(
            f"list the commits of {repo_id} at {revision}",
            lambda: self._api.list_repo_commits(repo_id, repo_type=KERNEL, revision=revision),
            again=False,
        )
        return [Commit(each.commit_id, each.title, each.message, each.created_at) for each in found]

    def create_repository(self, repo_id: str, *, private: bool) -> None:
        """Make it; one that is there already is left as it is."""
        self._ask(
            f"create the kernel repository {repo_id}",
            lambda: self._api.create_repo(repo_id, repo_type=KERNEL, private=private or None, exist_ok=True),
        )

    def create_branch(self, repo_id: str, branch: str, revision: str) -> None:
        """Make a branch at a revision; one that is there already is left where it is."""
        self._ask(
            f"create the branch {branch} of {repo_id}",
            lambda: self._api.create_branch(
                repo_id, branch=branch, revision=revision, repo_type=KERNEL, exist_ok=True
            ),
        )

    def delete_branch(self, repo_id: str, branch: str) -> None:
        """Remove a branch that only we have written to; one that is gone is gone."""

        def call() -> None:
            try:
                self._api.delete_branch(repo_id, branch=branch, repo_type=KERNEL)
            except RevisionNotFoundError:
                return

        self._ask(f"delete the branch {branch} of {repo_id}", call)

    def create_tag(self, repo_id: str, tag: str, commit: str) -> None:
        """Name a commit for good; the same name on another commit is a conflict."""
        self._ask(
            f"create the tag {tag} of {repo_id}",
            lambda: self._api.create_tag(repo_id, tag=tag, revision=commit, repo_type=KERNEL, exist_ok=True),
        )
        refs = self.refs(repo_id)
        if refs is None or refs.tags.get(tag) != commit:
            raise HubConflictError(
                f"the tag {tag} of {repo_id} names another commit than {commit[:12]}; "
                "somebody else released at the same time: run `kernelworks status` and publish again"
            )

    def commit(
        self,
        repo_id: str,
        branch: str,
        edits: Sequence[Edit],
        *,
        parent: str,
        title: str,
        description: str,
        pull_request: bool = False,
    ) -> Landed:
        """Make one commit on top of `parent` or none at all, whatever the network does in between.

        A lost answer (504, a cut connection) leaves it open whether the commit was made. By the mark in it
        the branch's history tells, and nothing is made twice.
        """
        mark = f"Publication: {uuid.uuid4().hex}"

        def call() -> Landed:
            try:
                with upload_progress(edits):
                    info = self._api.create_commit(
                        repo_id,
                        [_operation(edit) for edit in edits],
                        commit_message=title,
                        commit_description=f"{description}\n{mark}".strip(),
                        repo_type=KERNEL,
                        revision=branch,
                        parent_commit=parent,
                        create_pr=pull_request,
                    )
            except CAUGHT as error:
                if pull_request and is_doubtful(error):
                    raise HubUnavailableError(
                        f"{self.endpoint} did not say whether it opened the pull request on {repo_id}; "
                        "look there, and publish again if it did not"
                    ) from error
                # 412: an attempt that seemed lost may have landed after we looked for it.
                if is_doubtful(error) or status_of(error) == 412:
                    landed = self._landed(repo_id, branch, parent, mark)
                    if landed is not None:
                        return Landed(landed)
                raise
            return Landed(str(info.oid), info.pr_url)

        result = self._ask(f"commit to {branch} of {repo_id}", call)
        assert isinstance(result, Landed)
        return result

    def _landed(self, repo_id: str, branch: str, parent: str, mark: str) -> str | None:
        """The commit with our mark on top of `parent`, if it was made and the Hub can be asked."""
        try:
            history = self._api.list_repo_commits(repo_id, repo_type=KERNEL, revision=branch)
        except CAUGHT:
            return None
        for commit, before in pairwise(history):
            if mark in commit.message and before.commit_id == parent:
                return str(commit.commit_id)
        return None

    def snapshot(
        self, repo_id: str, revision: str, *, patterns: Iterable[str] | None = None, cache: Path | None = None
    ) -> Path:
        """Download a revision, or the part of it that these patterns name, into the cache."""
        wanted = None if patterns is None else list(patterns)
        return Path(
            self._ask(
                f"send the files of {repo_id} at {revision}",
                lambda: self._api.snapshot_download(
                    repo_id, repo_type=KERNEL, revision=revision, allow_patterns=wanted, cache_dir=cache
                ),
                again=False,
            )
        )

    def other_type_of(self, repo_id: str) -> str | None:
        """The type under which this name exists, where it is no kernel."""
        return next((each for each in OTHER_TYPES if self.exists(repo_id, each)), None)


def _endpoint(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise HubError(f"HF_ENDPOINT {text}: is no address of a Hub; write it like {PUBLIC_HUB}")
    return text.rstrip("/")


def _operation(edit: Edit) -> CommitOperationAdd | CommitOperationCopy | CommitOperationDelete:
    if edit.content is not None:
        return CommitOperationAdd(path_in_repo=edit.path, path_or_fileobj=edit.content)
    if edit.from_commit is not None:
        return CommitOperationCopy(
            src_path_in_repo=edit.path, path_in_repo=edit.path, src_revision=edit.from_commit
        )
    return CommitOperationDelete(path_in_repo=edit.path)

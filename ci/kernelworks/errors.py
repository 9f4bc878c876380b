# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a way that we expect: each error is a sentence for the person who meets it."""


class KernelworksError(Exception):
    """The base of all of them; the command line prints the sentence and exits with the code."""

    exit_code = 1


class RepositoryError(KernelworksError):
    """No repository here, or no such kernel in it."""

    exit_code = 3


class ManifestError(KernelworksError):
    """A build.toml that says something wrong, or too little."""

    exit_code = 4


class VendorError(KernelworksError):
    """A vendored file that is not the one in common/."""

    exit_code = 5


class ToolchainError(KernelworksError):
    """A compiler, a library or a program that is missing, or too old."""

    exit_code = 6


class BuildError(KernelworksError):
    """A kernel that cannot be built as asked."""

    exit_code = 7


class HostingError(KernelworksError):
    """A Hub of one's own that cannot be served as asked: its directory, its tokens, its address."""

    exit_code = 20


class HubError(KernelworksError):
    """A Hub that refuses, or that answers what cannot be used."""

    exit_code = 11


class HubAccessError(HubError):
    """A token that is missing, not known, expired, or without the right that is needed."""

    exit_code = 12


class HubUnavailableError(HubError):
    """A Hub that cannot be reached, or that keeps failing."""

    exit_code = 13


class HubConflictError(HubError):
    """A branch or a tag that somebody else moved in the meantime."""

    exit_code = 14


class PublishError(KernelworksError):
    """A kernel that may not be published as it is, or as it was asked for."""

    exit_code = 15


class VerifyError(KernelworksError):
    """A published kernel that is not what it should be."""

    exit_code = 16


class ReleaseError(KernelworksError):
    """A kernel that cannot be released as it stands, or a tag that says something else than it does."""

    exit_code = 17

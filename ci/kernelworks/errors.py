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
    """A vendored header that is not the one in common/."""

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

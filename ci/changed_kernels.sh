#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints as a JSON list the kernels whose directory is another tree at HEAD than at the commit that is named; all of
# them where none is named. A name becomes part of commands, so one that is no kernel's is refused.
set -euo pipefail

base=${1:-}
cd "$(git rev-parse --show-toplevel)"

names=()
for manifest in kernels/*/build.toml; do
  name=${manifest#kernels/}
  name=${name%/build.toml}
  if [[ ! $name =~ ^[a-z][-a-z0-9]*[a-z0-9]$ ]]; then
    printf 'kernels/%q is not the name of a kernel\n' "$name" >&2
    exit 1
  fi
  now=$(git rev-parse "HEAD:kernels/$name")
  if [[ -z $base || $now != "$(git rev-parse --verify --quiet "$base:kernels/$name")" ]]; then
    names+=("\"$name\"")
  fi
done
(
  IFS=,
  printf '[%s]\n' "${names[*]}"
)

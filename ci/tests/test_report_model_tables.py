# SPDX-License-Identifier: Apache-2.0
"""A model's record in a document: the short table makes the claims, the full one shows everything."""

from __future__ import annotations

from bench_model_records import measured, model_record, profile, tokens, work

from kernelworks.report_model_tables import lines


def test_the_short_table() -> None:
    said = list(lines(model_record(work(), tokens()), "short"))
    assert said[0] == (
        "| LTX-Video | eager, ms | kernels, ms | compile, ms | kernels+compile, ms "
        "| kernels vs eager | kernels vs compile | kernels+compile vs compile |"
    )
    assert said[1].count("---:") == 7
    assert said[2] == "| step | 60.00 | 30.00 | 40.00 | 24.00 | 2.00x | 1.33x | 1.67x |"
    assert said[3] == "| decode, a token | 50.00 | 25.00 | - | - | 2.00x | - | - |"
    conditions = " ".join(said[5:])
    assert conditions.startswith("a GPU, torch 2.13, diffusers 0.42.1, bfloat16, random weights, 2026-01-01,")
    assert "commit 0123456789ab;" in conditions
    assert "torch.compile in mode default." in conditions


def test_a_claim_needs_both_variants() -> None:
    few = work(variants={"eager": measured(2.0), "kernels": measured(1.0)})
    heading, _, row, *_ = lines(model_record(few), "short")
    assert heading == "| LTX-Video | eager, ms | kernels, ms | kernels vs eager |"
    assert row == "| step | 2.00 | 1.00 | 2.00x |"


def test_the_full_report() -> None:
    said = list(lines(model_record(work(), tokens()), "full"))
    assert "- repeat it: `kernelworks bench-model ltx --size full`" in said
    assert "**step**, milliseconds a step:" in said
    assert "**decode**, milliseconds a token:" in said
    assert said.count("Where the time of the device went, milliseconds a step:") == 1
    assert "| matmul | 25.000 | 25.000 | 25.000 | 20.000 |" in said
    assert "| eager | 30.000 | 12 | copies | elementwise_kernel direct_copy_kernel_cuda |" in said
    assert "| kernels | 3.000 | 57 | kernelworks adaln | kernelworks::adaln::forward_kernel |" in said


def test_nothing_in_a_name_is_markup() -> None:
    """A template's brackets would be taken for HTML."""
    said = "\n".join(
        lines(model_record(work(variants={"eager": measured(9.0, profile(copies=9.0))})), "full")
    )
    assert "<" not in said

# SPDX-License-Identifier: Apache-2.0
"""A model's record as text: what a person must see is there, and what is not known is not."""

from __future__ import annotations

from bench_model_records import measured, model_record, profile, tokens, work

from kernelworks import bench_model_table
from kernelworks.bench_table import NOTHING


def row(table: list[list[str]], name: str) -> dict[str, str]:
    heading, *rows = table
    return next(dict(zip(heading, cells, strict=True)) for cells in rows if cells[0] == name)


def test_a_variant_beside_eager_and_compile() -> None:
    cells = row(bench_model_table.times(work()), "kernels+compile")
    assert cells["ms a step"] == "24.00"
    assert (cells["vs eager"], cells["vs compile"]) == ("2.50x", "1.67x")
    assert (cells["device"], cells["idle"], cells["floor"]) == ("23.50", "0.50", "20.00")
    assert (cells["from truth"], cells["from eager"]) == ("4.0e-03", "5.0e-03")
    assert cells["peak GB"] == "5.00"
    assert row(bench_model_table.times(work()), "eager")["vs eager"] == NOTHING


def test_tokens_have_columns_of_their_own() -> None:
    table = bench_model_table.times(tokens())
    assert row(table, "kernels")["tokens as truth"] == "63 of 64"
    assert row(table, "kernels")["as eager until"] == "token 9"
    assert row(table, "eager")["as eager until"] == NOTHING
    assert "device" not in table[0]
    assert "peak GB" not in table[0]


def test_where_time_went() -> None:
    table = bench_model_table.shares(work())
    assert table[0] == ["group", "eager", "kernels", "compile", "kernels+compile"]
    assert [cells[0] for cells in table[1:]] == [
        *("matmul", "kernelworks adaln", "torch.compile", "copies", "device", "clock")
    ]
    assert row(table, "kernelworks adaln") == {
        "group": "kernelworks adaln",
        "eager": NOTHING,
        "kernels": "3.000",
        "compile": NOTHING,
        "kernels+compile": "3.000",
    }


def test_a_group_that_is_next_to_nothing_everywhere_has_no_row() -> None:
    step = work(variants={"eager": measured(2.0, profile(matmul=1.0, copies=0.0001))})
    assert [cells[0] for cells in bench_model_table.shares(step)] == ["group", "matmul", "device", "clock"]


def test_what_is_left_is_named() -> None:
    said = list(bench_model_table.largest(work()))
    assert said[0] == "eager, largest beside matmul and attention:"
    assert "copies: at::native::elementwise_kernel" in said[1]
    assert not any("nvjet" in line for line in said)


def test_the_whole_report() -> None:
    said = "\n".join(bench_model_table.lines(model_record(work(), tokens())))
    assert "LTX-Video, full size, bfloat16, 4.00 GB of random weights, at commit 0123456789ab\n" in said
    assert "a GPU, torch 2.13, CUDA 13.0, driver 580, diffusers 0.42.1" in said
    assert "num_frames 49, compile (mode default)" in said
    assert "29 ada_norm; left to torch: 1 Attention with another processor" in said
    assert "when at least one kernel ran" in said
    assert "FAILED" not in said


def test_a_failure_is_said_and_the_rest_is_there() -> None:
    failed = model_record(failures={"compile at step": "RuntimeError: no"})
    said = "\n".join(bench_model_table.lines(failed))
    assert said.endswith("FAILED: compile at step: RuntimeError: no")
    assert "kernels+compile" in said
    nothing = model_record(work(variants={}), failures={"eager at step": "no"})
    assert "ms a step" not in "\n".join(bench_model_table.lines(nothing))


def test_on_a_cpu_it_says_whose_time_it_is() -> None:
    said = "\n".join(bench_model_table.lines(model_record(device="cpu")))
    assert "each operator's own time" in said

# SPDX-License-Identifier: Apache-2.0
"""Names of kernels as an H200 and a CPU say them, and what a time line of them comes to."""

from __future__ import annotations

import pytest

from kernelworks.bench_model_groups import (
    Event,
    brief_name,
    group_of,
    in_order,
    profile_of,
    runs_compiled,
    runs_ours,
    short_name,
)

NATIVE = "void at::native::"
COPY = f"{NATIVE}elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<direct_copy_kernel_cuda(a*)> >"
ADD = (
    f"{NATIVE}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, array<char*, 3> >"
)
MUL = (
    f"{NATIVE}elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
    "float, float, at::native::binary_internal::MulFunctor<float> > > >"
)
GELU = (
    f"{NATIVE}vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{lambda()#1}::operator()() const, std::array<char*, 2ul> >"
)
ADALN = "void kernelworks::adaln::(anonymous namespace)::forward_kernel<__nv_bfloat16, 1>(ForwardParams)"
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, cutlass::bfloat16_t>>"
)
NAMES = {
    "matmul": [
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(Params)",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>",
        "triton_tem_fused_mm_1",
        "aten::addmm",
    ],
    "attention": [
        FLASH,
        "void pytorch_flash::flash_fwd_splitkv_combine_kernel<64>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x64x128_4x1x1_kernel0_0",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t>)",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
    ],
    "convolution": [
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
        "aten::mkldnn_convolution",
    ],
    "kernelworks adaln": [ADALN, "_adaln_cpu_cea5131a::gate_residual"],
    "kernelworks rope3d": [
        "void kernelworks::rope3d::(anonymous namespace)::norm_kernel<__nv_bfloat16>(Params)"
    ],
    "kernelworks rmsnorm": ["_rmsnorm_cpu_59a88f5e::add_rms_norm"],
    # Named after what they were fused with or stand beside, and yet none of that.
    "torch.compile": [
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0",
        "triton_poi_fused__scaled_dot_product_efficient_attention_clone_7",
        "triton_poi_fused_addmm_gelu_view_9",
        "triton_per_fused_native_layer_norm_5",
        "## Call CompiledFxGraph fp2kejsfyhr5 ##",
    ],
    "norms and sums": [
        f"{NATIVE}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float> > >",
        f"{NATIVE}(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>",
        "aten::_fused_rms_norm",
    ],
    "elementwise": [ADD, MUL, GELU, "aten::mul", "aten::add_"],
    "copies": [
        COPY,
        f"{NATIVE}(anonymous namespace)::CatArrayBatchedCopy_alignedK_contig<OpaqueType<2u>, int, 4>",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "aten::_to_copy",
    ],
    "other": [f"{NATIVE}indexSelectLargeIndex<c10::BFloat16, long>", "aten::view"],
}


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in NAMES for name in NAMES[group]])
def test_a_name_has_its_group(group: str, name: str) -> None:
    assert group_of(name) == group


def test_a_time_line_adds_up() -> None:
    """Two units of work: 4 ms of products, 2 of ours, which the next kernel meets by one, 1 ms of nothing."""
    events = [
        Event("nvjet_hsh", 0.0, 2000.0),
        Event(ADALN, 2000.0, 2000.0),
        Event(ADD, 3000.0, 2000.0),  # a millisecond of it beside ours
        Event("nvjet_hsh", 6000.0, 2000.0),
        Event(COPY, 6500.0, 500.0),  # wholly beside a product
    ]
    found = profile_of(events, 2, on_gpu=True)
    assert found.groups == {
        "matmul": 2.0,
        "kernelworks adaln": 1.0,
        "elementwise": 0.5,
        "copies": 0.0,
    }
    assert found.busy == sum(found.groups.values()) == 3.5
    assert found.total == 4.25
    assert found.calls == 2.5
    assert found.floor == 2.0
    assert [(share.name, share.ms, share.calls) for share in found.top[:2]] == [
        ("nvjet_hsh", 2.0, 1.0),
        ("kernelworks::adaln::forward_kernel<__nv_bfloat16, 1>(ForwardParams)", 1.0, 0.5),
    ]


def test_events_in_any_order() -> None:
    events = [Event("nvjet", 10.0, 5.0), Event(ADD, 0.0, 12.0)]
    assert profile_of(events, 1, on_gpu=True) == profile_of(events[::-1], 1, on_gpu=True)


def test_what_ran_is_seen() -> None:
    def of(*names: str) -> tuple[bool, bool]:
        found = profile_of([Event(name, place, 1.0) for place, name in enumerate(names)], 1, on_gpu=True)
        return runs_ours(found), runs_compiled(found)

    assert of(ADD, FLASH) == (False, False)
    assert of(ADD, ADALN) == (True, False)
    assert of("triton_poi_fused_cat_3", FLASH) == (False, True)


def test_nothing_is_no_time() -> None:
    found = profile_of([], 1, on_gpu=True)
    assert (found.busy, found.calls, found.groups, found.top) == (0, 0, {}, ())


def test_groups_have_an_order() -> None:
    given = [
        "copies",
        "other",
        "kernelworks rope3d",
        "attention",
        "kernelworks adaln",
        "torch.compile",
        "matmul",
    ]
    assert in_order(given) == [
        *("matmul", "attention", "kernelworks adaln", "kernelworks rope3d"),
        *("torch.compile", "copies", "other"),
    ]


@pytest.mark.parametrize(
    ("name", "brief"),
    [
        (ADD, "vectorized_elementwise_kernel CUDAFunctor_add"),
        (COPY, "elementwise_kernel direct_copy_kernel_cuda"),
        (MUL, "elementwise_kernel MulFunctor"),
        (GELU, "vectorized_elementwise_kernel GeluCUDAKernelImpl"),
        (ADALN, "kernelworks::adaln::forward_kernel"),
        ("triton_poi_fused_cat_3", "triton_poi_fused_cat_3"),
        ("x" * 80, "x" * 69 + "..."),
    ],
)
def test_names_for_tables(name: str, brief: str) -> None:
    assert brief_name(short_name(name)) == brief

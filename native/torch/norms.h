// PyTorch's own operators for layer norm and RMS norm, computed by the engine for plain CPU tensors.
//
// Results have the shapes, dtypes and strides of PyTorch's CPU kernels. If the engine does not take a call, PyTorch's
// kernel computes it, or raises its error.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace descend::pytorch {

using OptionalTensor = std::optional<at::Tensor>;

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_layer_norm(const at::Tensor& input,
                                                                 c10::SymIntArrayRef normalized_shape,
                                                                 const OptionalTensor& weight,
                                                                 const OptionalTensor& bias, double eps);

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_layer_norm_backward(
    const at::Tensor& grad_out, const at::Tensor& input, c10::SymIntArrayRef normalized_shape, const at::Tensor& mean,
    const at::Tensor& rstd, const OptionalTensor& weight, const OptionalTensor& bias, std::array<bool, 3> output_mask);

// Whether the engine computes RMS norm of these.
bool serves_rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, const OptionalTensor& weight);

std::tuple<at::Tensor, at::Tensor> fused_rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape,
                                                  const OptionalTensor& weight, std::optional<double> eps);

// PyTorch has no kernel of this operator for the CPU. If the engine does not take a call, other operators of PyTorch
// compute it (composed_rms_norm_backward).
std::tuple<at::Tensor, at::Tensor> fused_rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& input,
                                                           at::IntArrayRef normalized_shape, const at::Tensor& rstd,
                                                           const OptionalTensor& weight,
                                                           std::array<bool, 2> output_mask);

// The same as a composition of other operators, for tensors of any kind.
std::tuple<at::Tensor, at::Tensor> composed_rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& input,
                                                              at::IntArrayRef normalized_shape, const at::Tensor& rstd,
                                                              const OptionalTensor& weight,
                                                              std::array<bool, 2> output_mask);

}  // namespace descend::pytorch

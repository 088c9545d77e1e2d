#include "npu/recurrent.h"

#include <ATen/ATen.h>

#include <optional>
#include <tuple>

namespace descend::npu {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

bool given(const Optional& tensor) { return tensor.has_value() && tensor->defined(); }

Tensor plus(Tensor gates, const Optional& bias) { return given(bias) ? gates.add(*bias) : gates; }

Tensor or_zeros(const Optional& tensor, const Tensor& like) { return given(tensor) ? *tensor : at::zeros_like(like); }

// Gates are in the order input, forget, cell, output.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const Optional& input_bias, const Optional& hidden_bias) {
  const auto gates = plus(plus(input_gates.add(hidden_gates), input_bias), hidden_bias).unsafe_chunk(4, 1);
  const Tensor i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(), o = gates[3].sigmoid();
  const Tensor cy = f.mul(cx).addcmul_(i, g);
  return {o.mul(cy.tanh()), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const Optional& grad_hy, const Optional& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) return {};
  const auto gates = workspace.unsafe_chunk(4, 1);
  const Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  const Tensor dh = or_zeros(grad_hy, cx), tanh_cy = cy.tanh();
  const Tensor dc = at::tanh_backward(dh.mul(o), tanh_cy).add_(or_zeros(grad_cy, cx));
  const Tensor grad_gates = at::cat({at::sigmoid_backward(dc.mul(g), i), at::sigmoid_backward(dc.mul(cx), f),
                                     at::tanh_backward(dc.mul(i), g), at::sigmoid_backward(dh.mul(tanh_cy), o)},
                                    1);
  return {grad_gates, dc.mul(f), has_bias ? grad_gates.sum(0) : Tensor()};
}

// Gates are in the order reset, update, new.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const Optional& input_bias, const Optional& hidden_bias) {
  const auto in = plus(input_gates, input_bias).unsafe_chunk(3, 1);
  const auto hidden = plus(hidden_gates, hidden_bias).unsafe_chunk(3, 1);
  const Tensor r = in[0].add(hidden[0]).sigmoid_(), z = in[1].add(hidden[1]).sigmoid_();
  const Tensor n = in[2].addcmul(r, hidden[2]).tanh_();
  return {hx.sub(n).mul_(z).add_(n), at::cat({r, z, n, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto saved = workspace.unsafe_chunk(5, 1);
  const Tensor &r = saved[0], &z = saved[1], &n = saved[2], &hx = saved[3], &hidden_n = saved[4];
  const Tensor dn = at::tanh_backward(grad_hy.mul(z.neg().add_(1)), n);
  const Tensor dr = at::sigmoid_backward(dn.mul(hidden_n), r);
  const Tensor dz = at::sigmoid_backward(hx.sub(n).mul_(grad_hy), z);
  const Tensor grad_input = at::cat({dr, dz, dn}, 1), grad_hidden = at::cat({dr, dz, dn.mul(r)}, 1);
  return {grad_input, grad_hidden, grad_hy.mul(z), has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_hidden.sum(0) : Tensor()};
}

}  // namespace

void register_cells(torch::Library& library) {
  library.impl("_thnn_fused_lstm_cell", lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace descend::npu

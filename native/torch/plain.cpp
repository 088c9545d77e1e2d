#include "torch/plain.h"

#include <ATen/FuncTorchTLS.h>
#include <c10/util/Exception.h>

namespace descend::pytorch {
namespace {

bool transforms_active() {
  const auto& state = at::functorch::functorchTLSAccessor();
  if (state == nullptr) return false;
  try {
    state->checkSupportsCppAutogradFunction();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

}  // namespace

bool is_plain(c10::DispatchKeySet keys) {
  constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
  constexpr c10::DispatchKeySet kAutograd(c10::DispatchKey::AutogradCPU);
  return (keys == kCpu || keys == (kCpu | kAutograd)) && !transforms_active();
}

}  // namespace descend::pytorch

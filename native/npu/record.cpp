#include "npu/record.h"

#include <c10/core/ScalarType.h>

#include <map>
#include <mutex>
#include <sstream>
#include <utility>

namespace descend::npu {
namespace {

struct Total {
  uint64_t calls = 0;
  double seconds = 0;
};

std::mutex mutex;
std::map<std::pair<std::string, std::string>, Total> totals;

void describe(std::ostream& out, const at::Tensor& tensor) {
  out << (out.tellp() > 0 ? ", " : "");
  if (!tensor.defined()) {
    out << "none";
    return;
  }
  out << c10::toString(tensor.scalar_type()) << "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) out << (i == 0 ? "" : "x") << tensor.size(i);
  out << "]";
}

}  // namespace

std::atomic<bool> Recording::on_ = false;

void record(bool on) { Recording::on_ = on; }

std::vector<Recorded> recorded() {
  const std::lock_guard lock(mutex);
  std::vector<Recorded> all;
  for (const auto& [key, total] : totals) all.push_back({key.first, key.second, total.calls, total.seconds});
  return all;
}

void Recording::start(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t arguments) {
  std::ostringstream described;
  for (size_t i = stack.size() - arguments; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isTensor()) {
      describe(described, value.toTensor());
    } else if (value.isTensorList()) {
      const auto tensors = value.toTensorList();
      described << (described.tellp() > 0 ? ", " : "") << tensors.size() << " tensors";
    }
  }
  described_ = std::move(described).str();
  op_ = &op;
  start_ = std::chrono::steady_clock::now();
}

void Recording::finish() noexcept {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start_;
  try {
    const std::lock_guard lock(mutex);
    Total& total = totals[{c10::toString(op_->operator_name()), described_}];
    total.calls += 1;
    total.seconds += took.count();
  } catch (const std::exception&) {  // there is no memory: the report lacks this call
  }
}

}  // namespace descend::npu

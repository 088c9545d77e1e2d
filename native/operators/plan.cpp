#include "operators/plan.h"

namespace descend {

Place Plan::scratch(size_t rows, size_t columns, size_t size) {
  constexpr size_t kMost = size_t{1} << 62;
  const Place place{Place::kWorkspace, static_cast<int64_t>(workspace_bytes_)};
  size_t bytes;
  const bool overflows = __builtin_mul_overflow(rows, columns, &bytes) || __builtin_mul_overflow(bytes, size, &bytes);
  too_large_ = too_large_ || overflows || bytes > kMost - workspace_bytes_;
  if (!too_large_) workspace_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return place;
}

std::string Plan::describe() const {
  std::string text;
  for (const Step& s : steps_) text += (text.empty() ? "" : ", ") + std::string(s.name);
  return text.empty() ? "nothing to do" : text;
}

void Plan::clear() {
  steps_.clear();
  closures_.clear();
  lists_.clear();
  workspace_bytes_ = 0;
  too_large_ = false;
  bytes_ = 0;
  layout_.apart = false;
}

}  // namespace descend

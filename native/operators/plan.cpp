#include "operators/plan.h"

namespace descend {

Place Plan::scratch(size_t bytes) {
  const Place place{Place::kWorkspace, static_cast<int64_t>(workspace_bytes_)};
  workspace_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
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
  bytes_ = 0;
}

}  // namespace descend

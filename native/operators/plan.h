// A plan: a list of steps over the call's tensors and one workspace of known size.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "operators/operator.h"

namespace descend {

// The place of a step's data: an offset in bytes into a tensor's storage or into the workspace.
struct Place {
  static constexpr int kWorkspace = -1;
  int parameter = kWorkspace;
  int64_t offset = 0;
};

// What a plan assumes about where the call's tensors lie.
struct Layout {
  struct Entry {
    int parameter;
    bool is_output;
    ByteRange reach;  // relative to the tensor's data
  };
  std::array<Entry, kMaxParameters> entries{};  // of tensors with elements and memory
  int count = 0;
  uint32_t placed = 0;  // a bit for each tensor that has memory
  bool apart = false;   // no output overlaps another tensor; if one does, the plan is for this call alone
};

// The addresses of one run. The plan has none, so that a repeatable executor can run on other memory.
struct Addresses {
  std::array<char*, kMaxParameters> tensors{};
  char* workspace = nullptr;

  template <class T>
  T* at(Place place) const {
    char* base = place.parameter == Place::kWorkspace ? workspace : tensors[place.parameter];
    return reinterpret_cast<T*>(base + place.offset);
  }
};

class Plan {
 public:
  static constexpr size_t kAlignment = 64;

  // Scratch of rows * columns * size bytes in the workspace, aligned to kAlignment.
  Place scratch(size_t rows, size_t columns = 1, size_t size = 1);

  // The memory of a tensor's first element.
  static Place tensor(const Call& call, int i) {
    const Tensor& tensor = call[i].tensor;
    // Without elements the offset means nothing: it may be any number, and there may be no memory to add it to.
    return {i, tensor.empty() ? 0 : tensor.offset * dtype_size(tensor.dtype)};
  }

  // Adds a step: a trivially copyable closure that is called with the run's addresses. `bytes` estimates the memory
  // that it touches; a double, since a product of sizes may not fit into 64 bits.
  template <class Run>
  void step(const char* name, double bytes, const Run& run) {
    static_assert(std::is_trivially_copyable_v<Run> && alignof(Run) <= alignof(std::max_align_t));
    const size_t offset = closures_.size();
    closures_.resize(offset + (sizeof(Run) + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
    std::memcpy(static_cast<void*>(&closures_[offset]), &run, sizeof(Run));
    steps_.push_back({name, offset, [](const void* closure, const Addresses& addresses) {
                        (*static_cast<const Run*>(closure))(addresses);
                      }});
    bytes_ += bytes;
  }

  // Copies a list for the steps to read. The copy lives as long as the plan and does not move.
  template <class T>
  const T* keep(const std::vector<T>& list) {
    auto copy = std::make_shared<std::vector<T>>(list);
    const T* data = copy->data();
    lists_.push_back(std::move(copy));
    return data;
  }

  void run(const Addresses& addresses) const {
    for (const Step& s : steps_) s.run(&closures_[s.closure], addresses);
  }

  // Includes room to align the start: a caller's memory may be aligned only as malloc aligns it.
  size_t workspace_bytes() const {
    return workspace_bytes_ == 0 ? 0 : workspace_bytes_ + kAlignment - alignof(std::max_align_t);
  }
  // Whether the size overflows. The plan must not run then.
  bool too_large() const { return too_large_; }
  int64_t bytes() const { return static_cast<int64_t>(std::min(bytes_, 0x1p62)); }
  bool empty() const { return steps_.empty(); }
  std::string describe() const;  // the steps' names
  const Layout& layout() const { return layout_; }
  void set_layout(const Layout& layout) { layout_ = layout; }
  void clear();

 private:
  struct Step {
    const char* name;
    size_t closure;  // index into closures_
    void (*run)(const void* closure, const Addresses& addresses);
  };
  std::vector<Step> steps_;
  std::vector<std::max_align_t> closures_;
  std::vector<std::shared_ptr<const void>> lists_;
  size_t workspace_bytes_ = 0;
  bool too_large_ = false;
  double bytes_ = 0;
  Layout layout_;
};

}  // namespace descend

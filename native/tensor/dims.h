// A short list of int64 (a shape, strides, an array attribute) that stays inline up to rank 8.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

namespace descend {

class Dims {
 public:
  static constexpr uint64_t kInline = 8;

  Dims() = default;
  Dims(const int64_t* values, uint64_t count) { assign(values, count); }
  Dims(std::initializer_list<int64_t> values) { assign(values.begin(), values.size()); }
  Dims(const Dims& other) { assign(other.data(), other.size_); }
  Dims& operator=(const Dims& other) {
    if (this != &other) assign(other.data(), other.size_);
    return *this;
  }
  Dims(Dims&& other) noexcept { take(other); }
  Dims& operator=(Dims&& other) noexcept {
    if (this != &other) take(other);
    return *this;
  }

  void assign(const int64_t* values, uint64_t count) {
    // A heap block is kept only if it is needed: almost no list is longer than kInline.
    if (count > kInline) {
      auto block = std::make_unique<int64_t[]>(count);
      std::copy_n(values, count, block.get());
      heap_ = std::move(block);
    } else {
      std::copy_n(values, count, inline_);
      heap_.reset();
    }
    size_ = count;
  }
  void push_back(int64_t value) {
    if (size_ < kInline) {
      inline_[size_++] = value;
      return;
    }
    auto block = std::make_unique<int64_t[]>(size_ + 1);
    std::copy_n(data(), size_, block.get());
    block[size_] = value;
    heap_ = std::move(block);
    ++size_;
  }
  void clear() {
    heap_.reset();
    size_ = 0;
  }

  uint64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int64_t* data() const { return heap_ ? heap_.get() : inline_; }
  int64_t* data() { return heap_ ? heap_.get() : inline_; }
  const int64_t* begin() const { return data(); }
  const int64_t* end() const { return data() + size_; }
  int64_t operator[](uint64_t i) const { return data()[i]; }
  int64_t& operator[](uint64_t i) { return data()[i]; }
  int64_t back() const { return data()[size_ - 1]; }

  bool operator==(const Dims& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

  Dims slice(uint64_t first, uint64_t last) const { return Dims(data() + first, last - first); }

 private:
  void take(Dims& other) noexcept {
    heap_ = std::move(other.heap_);
    size_ = std::exchange(other.size_, 0);
    if (!heap_) std::copy_n(other.inline_, size_, inline_);
  }

  uint64_t size_ = 0;
  int64_t inline_[kInline];
  std::unique_ptr<int64_t[]> heap_;
};

// For sentences: of more than a few numbers only the first.
std::string to_string(const Dims& dims);

}  // namespace descend

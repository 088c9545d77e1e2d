// Shared by tests of the C interface: tensors in memory of exactly their size, and both phases in one call.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "acl/acl.h"
#include "aclnn/acl_meta.h"

// A tensor on the heap, so that a sanitizer sees every step beyond it.
class Array {
 public:
  Array(std::vector<int64_t> shape, aclDataType dtype) : shape_(std::move(shape)), dtype_(dtype) {
    for (int64_t length : shape_) size_ *= length;
    bytes_ = static_cast<size_t>(size_) * aclDataTypeSize(dtype);
    data_ = std::make_unique<unsigned char[]>(bytes_);
    std::memset(data_.get(), 0xFF, bytes_);  // NaN in every floating type
    tensor_ = aclCreateTensor(shape_.data(), shape_.size(), dtype, nullptr, 0, ACL_FORMAT_ND, shape_.data(),
                              shape_.size(), data_.get());
  }
  Array(Array&& other) noexcept = delete;
  ~Array() { aclDestroyTensor(tensor_); }

  // Numbers from -2 to 2 that follow from the seed, or from 0.5 to 1.5, or 0 and 1.
  Array& normal(uint32_t seed) { return fill(seed, -2, 4); }
  Array& positive(uint32_t seed) { return fill(seed, 0.5, 1); }
  Array& bits(uint32_t seed) {
    for (int64_t i = 0; i < size_; ++i) data_[i] = next(seed) < 0.3;
    return *this;
  }

  // INT64 numbers from 0 to below `count`.
  Array& below(int64_t count, uint32_t seed) {
    for (int64_t i = 0; i < size_; ++i) {
      const auto value = static_cast<int64_t>(next(seed) * static_cast<double>(count));
      std::memcpy(data_.get() + 8 * i, &value, 8);
    }
    return *this;
  }

  double at(int64_t i) const {
    const unsigned char* p = data_.get() + i * aclDataTypeSize(dtype_);
    if (dtype_ == ACL_DOUBLE) return read<double>(p);
    if (dtype_ == ACL_FLOAT) return read<float>(p);
    if (dtype_ == ACL_FLOAT16) return aclFloat16ToFloat(read<aclFloat16>(p));
    return read_bf16(p);
  }
  bool finite() const {
    for (int64_t i = 0; i < size_; ++i) {
      if (!(at(i) - at(i) == 0)) return false;
    }
    return true;
  }
  // FNV-1a over the bytes.
  uint64_t digest(uint64_t hash = 14695981039346656037u) const {
    for (size_t i = 0; i < bytes_; ++i) hash = (hash ^ data_[i]) * 1099511628211u;
    return hash;
  }

  operator aclTensor*() { return tensor_; }
  unsigned char* data() { return data_.get(); }
  size_t bytes() const { return bytes_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  aclDataType dtype() const { return dtype_; }
  int64_t size() const { return size_; }

 private:
  template <class T>
  static T read(const unsigned char* p) {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
  }
  static double read_bf16(const unsigned char* p) {
    const uint32_t bits = static_cast<uint32_t>(read<uint16_t>(p)) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  static double next(uint32_t& state) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) * 0x1p-24;
  }
  Array& fill(uint32_t seed, double low, double range) {
    for (int64_t i = 0; i < size_; ++i) set(i, low + range * next(seed));
    return *this;
  }
  void set(int64_t i, double value) {
    unsigned char* p = data_.get() + i * aclDataTypeSize(dtype_);
    const auto narrow = static_cast<float>(value);
    if (dtype_ == ACL_DOUBLE) {
      std::memcpy(p, &value, 8);
    } else if (dtype_ == ACL_FLOAT) {
      std::memcpy(p, &narrow, 4);
    } else if (dtype_ == ACL_FLOAT16) {
      const aclFloat16 half = aclFloatToFloat16(narrow);
      std::memcpy(p, &half, 2);
    } else {
      uint32_t bits;
      std::memcpy(&bits, &narrow, 4);
      const auto upper = static_cast<uint16_t>(bits >> 16);
      std::memcpy(p, &upper, 2);
    }
  }

  std::vector<int64_t> shape_;
  aclDataType dtype_;
  int64_t size_ = 1;
  size_t bytes_ = 0;
  std::unique_ptr<unsigned char[]> data_;
  aclTensor* tensor_ = nullptr;
};

using SecondPhase = aclnnStatus (*)(void*, uint64_t, aclOpExecutor*, aclrtStream);

// Both phases and a synchronise; the first status that is not 0, of which aclGetRecentErrMsg() tells.
template <class First, class... Arguments>
int run(First first, SecondPhase second, aclrtStream stream, Arguments&&... arguments) {
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  if (const int status = first(arguments..., &size, &executor)) return status;
  const auto workspace = size > 0 ? std::make_unique<unsigned char[]>(size) : nullptr;
  if (const int status = second(workspace.get(), size, executor, stream)) return status;
  return aclrtSynchronizeStream(stream);
}

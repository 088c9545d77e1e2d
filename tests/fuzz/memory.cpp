#include "memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "contract.h"

namespace fuzz {
namespace {

constexpr int64_t kMostBytes = 65536;

// -1 for a storage that no block is made for.
int64_t storage_bytes(const TensorArgument& tensor) {
  int64_t bytes = element_size(tensor.dtype);
  for (int64_t dim : tensor.storage) {
    if (dim < 0 || dim > kMostBytes) return -1;
    bytes *= dim;
    if (bytes > kMostBytes) return -1;
  }
  return bytes;
}

double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = exponent == 31 ? (fraction != 0 ? NAN : HUGE_VAL)
                 : exponent > 0 ? std::ldexp(1024 + fraction, exponent - 25)
                                : std::ldexp(fraction, -24);
  return bits >> 15 != 0 ? -value : value;
}

// Digits beyond float16's are cut off; numbers below its normal ones become 0.
uint16_t as_half(double number) {
  const uint16_t sign = std::signbit(number) ? 0x8000 : 0;
  if (std::isnan(number)) return sign | 0x7E00;
  if (std::abs(number) >= 65536) return sign | 0x7C00;
  int exponent;
  const double fraction = std::frexp(std::abs(number), &exponent);  // from 0.5 to 1
  if (number == 0 || exponent < -13) return sign;
  const int digits = static_cast<int>(std::ldexp(fraction, 11)) - 1024;
  return static_cast<uint16_t>(sign | (exponent + 14) << 10 | digits);
}

double decode(int dtype, const char* place) {
  const auto as = [place](auto value) {
    std::memcpy(&value, place, sizeof(value));
    return value;
  };
  switch (dtype) {
    case ACL_FLOAT:
      return as(0.0F);
    case ACL_DOUBLE:
      return as(0.0);
    case ACL_INT32:
      return as(int32_t{});
    case ACL_INT64:
      return static_cast<double>(as(int64_t{}));
    case ACL_FLOAT16:
      return half(as(uint16_t{}));
    case ACL_BF16: {
      const uint32_t bits = uint32_t{as(uint16_t{})} << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      return value;
    }
    default:
      return as(uint8_t{});
  }
}

// The next smaller whole number that all integers have.
double whole(double number) {
  return std::isnan(number) ? 0 : std::floor(std::clamp<double>(number, INT32_MIN, INT32_MAX));
}

void encode(int dtype, double number, char* place) {
  const auto put = [place](auto value) { std::memcpy(place, &value, sizeof(value)); };
  switch (dtype) {
    case ACL_FLOAT:
      return put(static_cast<float>(number));
    case ACL_DOUBLE:
      return put(number);
    case ACL_INT32:
      return put(static_cast<int32_t>(whole(number)));
    case ACL_INT64:
      return put(static_cast<int64_t>(whole(number)));
    case ACL_FLOAT16:
      return put(static_cast<uint16_t>(as_half(number)));
    case ACL_BF16: {
      const auto value = static_cast<float>(number);
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      return put(static_cast<uint16_t>(bits >> 16));
    }
    case ACL_BOOL:
      return put(static_cast<uint8_t>(number > 1));
    default:
      return;
  }
}

}  // namespace

Memory::~Memory() {
  for (const Block& block : blocks_) {
    if (!block.is_library) {
      delete[] block.data;
    } else {
      expect("aclrtFree", aclrtFree(block.data), {0});
    }
  }
}

char* Memory::allocate(size_t size, bool in_library) {
  void* data = nullptr;
  if (in_library) {
    expect("aclrtMalloc", aclrtMalloc(&data, size, ACL_MEM_MALLOC_HUGE_FIRST), {0});
  } else {
    data = new char[size];
  }
  blocks_.push_back({static_cast<char*>(data), size, in_library});
  return blocks_.back().data;
}

bool Memory::share(Bytes& bytes, Call& call, size_t i, int64_t need) {
  TensorArgument& tensor = call.tensors[i];
  const TensorArgument& other = call.tensors[bytes.below(static_cast<int64_t>(i))];
  const int64_t skip = bytes.pick<int64_t>({0, 0, 0, 1, 3, 16}) * element_size(tensor.dtype);
  if (other.data == nullptr) return false;
  for (const Block& block : blocks_) {
    if (other.data < block.data || other.data >= block.data + block.size) continue;
    const auto room = static_cast<int64_t>(block.data + block.size - other.data) - skip;
    if (room <= 0 || (!block.is_library && (need < 0 || need > room))) return false;
    tensor.data = other.data + skip;
    if (block.is_library) tensor.room = static_cast<size_t>(room);
    // So that an output is often exactly an input.
    if (skip == 0 && tensor.dtype == other.dtype && tensor.shape == other.shape && !bytes.one_in(3) &&
        tensor.storage == tensor.shape) {
      tensor.strides = other.strides, tensor.offset = other.offset, tensor.storage = other.storage;
    }
    return true;
  }
  return false;
}

void Memory::place(Bytes& bytes, Call& call) {
  for (size_t i = 0; i < call.given; ++i) {
    TensorArgument& tensor = call.tensors[i];
    const int64_t need = storage_bytes(tensor), kind = bytes.below(16);
    if (kind == 15) continue;  // null
    if (kind >= 12 && i > 0 && share(bytes, call, i, need)) continue;
    if (kind == 9 || kind == 10 || (need < 0 && kind % 2 != 0)) {
      const int64_t most = std::max<int64_t>(need, 1), skip = bytes.pick<int64_t>({0, 0, 64});
      tensor.room = static_cast<size_t>(bytes.pick({most, most, most + 32, std::max<int64_t>(most - 1, 1)}));
      tensor.data = allocate(tensor.room + skip, true) + skip;
    } else if (need >= 0) {
      const int64_t skip = bytes.below(64) == 63 ? 1 : 0;
      tensor.data = allocate(need + skip, false) + skip;
    }
  }
  call.copy_in_place();
}

char* Memory::move(Call& call, size_t i) {
  TensorArgument& tensor = call.tensors[i];
  const int64_t need = storage_bytes(tensor);
  if (need < 0 || tensor.data == nullptr) return nullptr;
  char* const data = allocate(need, false);
  // A tensor without elements may have a storage beyond its memory.
  std::memcpy(data, tensor.data, std::min(static_cast<size_t>(need), tensor.room));
  tensor.data = data, tensor.room = SIZE_MAX;
  call.copy_in_place();
  return data;
}

void Memory::fill(const Call& call, uint32_t seed) {
  for (const Block& block : blocks_) std::memset(block.data, 0xA5, block.size);
  uint32_t state = seed;
  const auto next = [&state] {
    state = state * 1664525U + 1013904223U;
    return (state >> 8) * 0x1p-24;
  };
  for (size_t i = 0; i < call.inputs; ++i) {
    const TensorArgument& tensor = call.tensors[i];
    if (tensor.handle != Handle::kAlive || tensor.data == nullptr || !uses(call, i)) continue;
    const std::vector<int64_t>* const all = places(tensor);
    if (all == nullptr) continue;
    for (int64_t place : *all) {
      // Integers are targets, which may be no class, and steps.
      double number = is_integer(tensor.dtype) ? next() * 9 - 1.25 : next() * 4 - 2;
      // One seed of 16 has numbers that nothing is computed well from; nothing may break.
      if (seed % 16 == 15) {
        const double odd[] = {HUGE_VAL, -HUGE_VAL, NAN, 1e300, -1e38, 1e-45, 0, 65504};
        number = odd[static_cast<int>(next() * 8)];
      }
      encode(tensor.dtype, number, tensor.data + place * element_size(tensor.dtype));
    }
  }
}

std::vector<char> Memory::bytes() const {
  size_t size = 0;
  for (const Block& block : blocks_) size += block.size;
  std::vector<char> result;
  result.reserve(size);
  for (const Block& block : blocks_) result.insert(result.end(), block.data, block.data + block.size);
  return result;
}

void Memory::clear(const TensorArgument& tensor, std::vector<char>& copy) const {
  const std::vector<int64_t>* const all = tensor.data != nullptr ? places(tensor) : nullptr;
  if (all == nullptr) return;
  const int64_t size = element_size(tensor.dtype);
  for (int64_t place : *all) {
    const char* const element = tensor.data + place * size;
    size_t before = 0;
    for (const Block& block : blocks_) {
      if (element >= block.data && element < block.data + block.size) {
        std::memset(copy.data() + before + (element - block.data), 0, size);
      }
      before += block.size;
    }
  }
}

Numbers read(const TensorArgument& tensor) {
  Numbers result;
  const std::vector<int64_t>* const all = tensor.data != nullptr ? places(tensor) : nullptr;
  if (all == nullptr) return result;
  result.reserve(all->size());
  for (int64_t place : *all) result.push_back(decode(tensor.dtype, tensor.data + place * element_size(tensor.dtype)));
  return result;
}

bool is_integer(int dtype) { return dtype == ACL_INT32 || dtype == ACL_INT64; }

double largest(int dtype) { return dtype == ACL_FLOAT16 ? 65504 : dtype == ACL_DOUBLE ? 1e300 : 3e38; }

double rounding(int dtype) {
  return dtype == ACL_FLOAT16 ? 0x1p-11 : dtype == ACL_BF16 ? 0x1p-8 : dtype == ACL_DOUBLE ? 0x1p-50 : 0x1p-23;
}

}  // namespace fuzz

// The memory of a call's tensors: blocks of exactly the size that a tensor says it has, so that AddressSanitizer sees
// each step beyond them, and memory of the library. Two tensors may share a block.
#pragma once

#include <memory>
#include <vector>

#include "bytes.h"
#include "call.h"
#include "reference.h"

namespace fuzz {

class Memory {
 public:
  Memory() = default;
  Memory(Memory&&) = delete;
  ~Memory();

  // Gives each tensor its memory, or none. With AddressSanitizer nothing here is larger than 64 KiB.
  void place(Bytes& bytes, Call& call);
  // A new block for tensor i, with what the old one holds; null where it cannot have one.
  char* move(Call& call, size_t i);

  // Fills all blocks with one byte, then the elements of the inputs with numbers.
  void fill(const Call& call, uint32_t seed);

  // The bytes of all blocks.
  std::vector<char> bytes() const;
  // Clears, in a copy made by bytes(), the bytes of a tensor's elements.
  void clear(const TensorArgument& tensor, std::vector<char>& copy) const;

 private:
  struct Block {
    char* data;
    size_t size;
    bool is_library;
  };
  std::vector<Block> blocks_;

  bool share(Bytes& bytes, Call& call, size_t i, int64_t need);
  char* allocate(size_t size, bool in_library);
};

// The elements of a tensor as numbers, in logical order.
Numbers read(const TensorArgument& tensor);

bool is_integer(int dtype);

// What the largest finite number, and the rounding of a number of size 1, are.
double largest(int dtype);
double rounding(int dtype);

}  // namespace fuzz

// What an accepted call may change, and what its outputs must be.
#pragma once

#include <vector>

#include "call.h"
#include "memory.h"

namespace fuzz {

// Makes a call's product the current one, where no other thread makes calls.
void set_product(Product product);

// With FUZZ_SHOW in the environment, each call is printed before it is made: what an input stands for.
void show(const Call& call);

// Prints how many calls of each operator were accepted so far, and how many of these were compared, how
// many of them in double. False if there is an operator of which none was compared.
bool print_counts();

// Whether the call is too large to be computed under a fuzzer.
bool is_too_much(const Call& call);

// Whether a tensor that is used has elements, but no memory.
bool addresses_missing(const Call& call);

// The inputs and all memory before a call.
class Results {
 public:
  Results(const Call& call, const Memory& memory, const char* name);
  // Nothing but the outputs' elements has changed, and these are what they must be.
  void compare(bool accepted);

 private:
  const Call& call_;
  const Memory& memory_;
  const char* name_;
  std::vector<Numbers> inputs_;
  std::vector<char> before_;

  bool is_tame() const;
  bool is_double() const;
  void compare(const Numbers& got, const Numbers& expected, int dtype, size_t i) const;
};

}  // namespace fuzz

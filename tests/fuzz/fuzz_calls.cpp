// The fuzzer of the C interface, for libFuzzer: sequences of calls, decoded from bytes.
#include "runtime.h"

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  fuzz::begin();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::run(data, size);
  return 0;
}

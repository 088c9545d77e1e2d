// The fuzzer of the C interface, for libFuzzer: sequences of calls, decoded from bytes.
#include <cinttypes>

#include "runtime.h"

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  fuzz::begin();
  std::atexit(
      [] { std::fprintf(stderr, "calls whose statuses were compared: %" PRIu64 "\n", fuzz::calls_checked.load()); });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::run(data, size);
  return 0;
}

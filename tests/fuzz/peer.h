// A second process that imports what this one exports: a process cannot import its own handles.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace fuzz {

// What the other process is asked to do. It answers with the status of the call.
struct Request {
  enum Kind : int32_t {
    kImport,      // and, if that worked, map the memory, read its first byte and write another one
    kExport,      // what was imported last
    kImportNull,  // without a place for the result
    kFree,        // all that was imported
  };
  Kind kind = kFree;
  int32_t device = 0;
  uint64_t shareable = 0;
  size_t bytes = 0;
  char write = 0;
};
struct Reply {
  int status = 0;
  char read = 0;
};

// Starts it. To be called before the library has threads. qemu-user, which forks badly, has none.
void start_peer();
pid_t peer();  // 0 if there is none
Reply ask(const Request& request);

}  // namespace fuzz

// Moves memory from malloc into a file, at its address, while other threads use it.
#pragma once

#include <cstddef>

#include "runtime/shared_file.h"
#include "runtime/status.h"

namespace descend {

// Turns the pages from `start` on, as many as the file has, into pages of the file. Their address and contents stay. A
// thread that touches them meanwhile waits until it is done, so no write is lost. For that the system must permit
// userfaultfd. A failure says what is not permitted, and leaves the memory as it was.
Status move_to_file(void* start, const SharedFile& file);

// Gives the pages ordinary memory again, filled with zeros. False if the system refuses.
bool take_back_from_file(void* start, size_t bytes);

}  // namespace descend

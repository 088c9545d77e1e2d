// Moves memory of malloc's into a file, where it stands, while it is in use.
#pragma once

#include <cstddef>

#include "runtime/shared_file.h"
#include "runtime/status.h"

namespace descend {

// The pages from `start` on, as many as the file has, become the file's; what stands in them stays, and so does their
// address. Whoever touches them meanwhile waits until it is done: no write is lost. For that the system must permit
// userfaultfd; a failure says what it does not permit, and has changed nothing.
Status move_to_file(void* start, const SharedFile& file);

// Gives the pages ordinary memory again, with nothing in it. False where the system does not.
bool take_back_from_file(void* start, size_t bytes);

}  // namespace descend

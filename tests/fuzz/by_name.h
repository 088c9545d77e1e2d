// Calls of operators by the name of their type (aclopCompileAndExecute), decoded from bytes.
#pragma once

#include "acl/acl.h"
#include "bytes.h"

namespace fuzz {

void call_by_name(Bytes& bytes, aclrtStream stream, bool stream_alive);

}  // namespace fuzz

// Events, as programs create them.
#pragma once

#include <memory>

#include "runtime/ipc_event.h"
#include "runtime/stream.h"

namespace descend::capi {

struct ProgramEvent : Event {
  std::shared_ptr<IpcEvent> shared;  // null for an event of this process alone
  bool timed = true;                 // whether it has a time
};

}  // namespace descend::capi

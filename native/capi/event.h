// The events of a program.
#pragma once

#include <memory>

#include "runtime/ipc_event.h"
#include "runtime/stream.h"

namespace descend::capi {

struct ProgramEvent : Event {
  std::shared_ptr<IpcEvent> shared;  // with other processes; null for an event of this one alone
  bool timed = true;                 // its time can be asked for
};

}  // namespace descend::capi

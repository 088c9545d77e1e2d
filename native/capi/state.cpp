#include "capi/state.h"

#include <pthread.h>

namespace descend::capi {
namespace {

constinit ForkHandlers fork_handlers{};

}  // namespace

bool set_fork_handlers(const ForkHandlers& handlers) {
  fork_handlers = handlers;
  return true;
}

State& state() {
  static State* const instance = [] {
    auto* made = new State();  // never destroyed: threads may call until the process ends
    // Handlers before a fork run last in, first out. The runtime registered its own while the library was loaded, so
    // its locks are taken after those of the C interface.
    pthread_atfork(fork_handlers.before, fork_handlers.in_parent, fork_handlers.in_child);
    return made;
  }();
  return *instance;
}

}  // namespace descend::capi

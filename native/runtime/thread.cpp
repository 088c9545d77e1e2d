#include "runtime/thread.h"

#include <csignal>
#include <memory>
#include <new>

namespace descend {
namespace {

struct Start {
  const char* name;
  void (*body)(void*);
  void* argument;
};

void* enter(void* pointer) {
  const Start start = *std::unique_ptr<Start>(static_cast<Start*>(pointer));
#if defined(__linux__)
  pthread_setname_np(pthread_self(), start.name);
#elif defined(__APPLE__)
  pthread_setname_np(start.name);
#endif
  start.body(start.argument);
  return nullptr;
}

}  // namespace

bool Thread::start(const char* name, void (*body)(void*), void* argument) {
  std::unique_ptr<Start> start(new (std::nothrow) Start{name, body, argument});
  if (!start) return false;
  // Signals such as Ctrl-C are for the program's own threads. Faults are not blocked: otherwise the program's handler
  // would not get them.
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  started_ = pthread_create(&handle_, nullptr, enter, start.get()) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started_) (void)start.release();  // enter() frees it
  return started_;
}

void Thread::join() {
  if (started_) pthread_join(handle_, nullptr);
  started_ = false;
}

void Thread::detach() {
  if (started_) pthread_detach(handle_);
  started_ = false;
}

}  // namespace descend

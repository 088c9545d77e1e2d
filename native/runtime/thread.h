// A thread of the engine: it takes no signals, and a forked child can forget it.
#pragma once

#include <pthread.h>

namespace descend {

class Thread {
 public:
  // False if the system gives no thread. `name` has at most 15 characters.
  bool start(const char* name, void (*body)(void* argument), void* argument);
  bool started() const { return started_; }
  bool is_current() const { return started_ && pthread_equal(handle_, pthread_self()); }
  void join();
  void detach();
  void forget() { started_ = false; }  // in a forked child, where it does not exist

 private:
  pthread_t handle_{};
  bool started_ = false;
};

}  // namespace descend

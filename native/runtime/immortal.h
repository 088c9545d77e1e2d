// A global that is never destroyed: threads and destructors may use it to the very end of the process.
#pragma once

#include <new>

namespace descend {

template <class T>
class Immortal {
 public:
  Immortal() { ::new (static_cast<void*>(&value_)) T(); }
  ~Immortal() {}
  Immortal(const Immortal&) = delete;
  Immortal& operator=(const Immortal&) = delete;

  T& operator*() { return value_; }
  T* operator->() { return &value_; }

 private:
  union {
    T value_;
  };
};

}  // namespace descend
